"""The page at ``/``, which shows the prediction for a SMILES. It loads no other script."""

from __future__ import annotations

import hashlib
from base64 import b64encode

SCRIPT = """
const form = document.querySelector("form"), out = document.querySelector("output");
let latest = 0;
const ask = async (smiles) => {
  const answer = await fetch("predict", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({smiles: [smiles]}),
  });
  const reply = await answer.json();
  if (!answer.ok) return reply.detail;
  const values = (reply.probabilities || reply.outputs)[0];
  return (reply.probabilities ? "probability " : "output ")
    + [values].flat().map((v) => v === null ? "-" : v.toPrecision(4)).join(", ");
};
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const smiles = document.querySelector("#smiles").value, number = ++latest;
  out.textContent = "...";
  const text = await ask(smiles).catch(() => "the server does not answer");
  if (number === latest) out.textContent = text;  // not the answer to an earlier one
});
"""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
input { font: inherit; width: 70% } button { font: inherit } output { font-size: 1.4rem }
"""


def page(title: str, smiles: bool) -> str:
    """The page as HTML, with a form if the model takes SMILES; the title must be escaped."""
    form = """<form><input id="smiles" aria-label="SMILES" value="CC(=O)Oc1ccccc1C(=O)O">
<button>Predict</button></form><output></output>"""
    about = "This model takes graphs alone: see <a href='docs'>its interface</a>."
    script = f"<script>{SCRIPT}</script>" if smiles else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>{form if smiles else about}{script}</html>"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Only the script and style above are allowed.
POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
