"""The page at ``/``: type a SMILES, see it drawn and predicted. No script but this one."""

from __future__ import annotations

import hashlib
from base64 import b64encode

SCRIPT = """
const form = document.querySelector("form"), out = document.querySelector("output");
let asked = 0;
const ask = async (smiles) => {
  const answer = await fetch("predict", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({smiles: [smiles]}),
  });
  const found = await answer.json();
  if (!answer.ok) return found.detail;
  const values = (found.probabilities || found.outputs)[0];
  return (found.probabilities ? "probability " : "output ")
    + [values].flat().map((v) => v === null ? "-" : v.toPrecision(4)).join(", ");
};
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const smiles = document.querySelector("#smiles").value, number = ++asked;
  const drawing = document.querySelector("img");
  drawing.hidden = false;
  drawing.onerror = () => { drawing.hidden = true; };
  drawing.src = "draw?smiles=" + encodeURIComponent(smiles);
  drawing.alt = smiles;
  out.textContent = "...";
  const said = await ask(smiles).catch(() => "the server does not answer");
  if (number === asked) out.textContent = said;  // and not that of one asked before
});
"""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
input { font: inherit; width: 70% } button { font: inherit } output { font-size: 1.4rem }
img { display: block; min-height: 18rem; margin: 1rem 0 }
"""


def page(title: str, smiles: bool) -> str:
    """HTML; without the form where the model takes no SMILES. The title holds no markup."""
    form = """<form><input id="smiles" aria-label="SMILES" value="CC(=O)Oc1ccccc1C(=O)O">
<button>Predict</button></form><img alt=""><output></output>"""
    about = "This model takes graphs alone: see <a href='docs'>its interface</a>."
    script = f"<script>{SCRIPT}</script>" if smiles else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>{form if smiles else about}{script}</html>"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Nothing but what stands above runs, and drawings come from here.
POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
