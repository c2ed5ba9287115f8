"""What ``--json`` prints in every command: compact shapes, and the JSON schemas they stand for.

A shape is a word, or several with ``|`` between them: a type of JSON, or ``count`` (a whole number
from 0), ``positive`` (from 1), ``share`` (from 0 to 1), ``any``. A tuple holds the only values; a
list holds the shape of its items, then the least number of them and other types of the whole. A
dictionary maps keys (several with spaces between them, those that may be absent with ``?``) to the
shape of their value; ``/`` begins a pattern of keys, ``*`` is any other key, and an empty key says
that the whole may be ``null``. A key that is not named is refused.
"""

from __future__ import annotations

import json
from typing import Any

WORDS: dict[str, dict[str, Any]] = {
    "any": {},
    "count": {"type": "integer", "minimum": 0},
    "positive": {"type": "integer", "minimum": 1},
    "share": {"type": "number", "minimum": 0, "maximum": 1.000001},
}
OBSTACLES = [{"kind operation module where line reason remedy": "string", "advice": "string|null"}]
ATTENTION = [
    {
        "bucket": "count",
        "layers": ["string"],
        "path reason": "string",
    }
]
SHAPES: dict[str, Any] = {
    "bench": {
        "setting": {
            "model data capacity label date": "string",
            "batch_size": "count",
            "autocast": "string|null",
            "versions": {"*": "string"},
        },
        "*": {
            "forward backward optimizer total": "count",
            "unit": ("operations", "launches"),
            "kinds?": "object",
            "operators?": {"*": {"*": "count"}},
            "launches? host_reads?": "any",
        },
    },
    "check-for": {
        "ok kernels?": "boolean",
        "label model device torch target?": "string",
        "runs": [
            {
                "mode capacity phase": "string",
                "bucket graphs graph_breaks mutated_not_static": "count",
                "resident_bytes peak_bytes reserved_bytes moved_bytes flops": "count",
                "pieces expected": "count|null",
                "causes": ["object"],
                "error": "string|null",
                "partitions": ["count"],
                "devices": ["string"],
                "launches": {"*": {"*": {"*": "count"}}},
                "operators": {"*": {"*": "count"}},
                "moments": [["any"]],
                "at_least_s compile_s": "number",
            }
        ],
        "uses?": ["object"],
        "check?": "object",
        "notes? emulated?": ["string"],
        "autocast?": "string|null",
    },
    "check": {
        "ok compiles recordable": "boolean",
        "model batch parity_note": "string",
        "modules": [{"path layer how": "string", "inert": "boolean|null"}],
        "obstacles": OBSTACLES,
        "graphs": "count",
        "parity": "number|null",
        "attention": ATTENTION,
        "rewrites?": {
            "done": [{"rewrite line layer computes": "string"}],
            "missed": [{"rewrite line layer reason": "string"}],
            "note": "string",
        },
    },
    "convert": {"graphs nodes edges bytes": "count", "/^split\\s.+$": "count"},
    "partition": {
        "nodes edges relations partitions": "count",
        "partition_nodes bucket_edges_min bucket_edges_max bytes": "count",
        "bucket_edges_mean": "number",
    },
    "plan-limits": {
        "method": "string",
        "packs patterns max_graphs_in_a_pack": "count",
        "volume_bound proven_bound? bound? bound_columns?": "count",
        "harmonic_mean": "share",
        "graphs_per_pack seconds compile_seconds? linear_bound? bound_seconds?": "number",
        "/_efficiency$": "share",
    },
    "plan": {
        "packs volume_bound": "count",
        "node_efficiency edge_efficiency harmonic_mean": "share",
        "cost seconds": "number",
        "buckets": [
            {
                "nodes edges graphs max_graph_nodes batches": "count",
                "node_efficiency edge_efficiency graph_efficiency": "share",
                "cost": "number",
            },
            1,
        ],
        "stats": {"graphs batches skipped overflowed rebalanced spilled split empty": "count"},
        "plan": {
            "format": ("staticgraph.plan",),
            "version": "count",
            "batch_size?": "count|null",
            "capacities": ["object", 1],
            "*": "any",
        },
        "cost_by_buckets?": ["number"],
    },
    "predict": {
        "run data": "string",
        "task": "string|null",
        "graph_ids": ["count"],
        "outputs": [["number"]],
        "probabilities?": [["share"]],
    },
    "probe": {
        "form": ("linear", "attention", "quadratic"),
        "fit_note reader note format?": "string",
        "terms axes?": ["string"],
        "planes": [["number"]],
        "residual overhead seconds": "number",
        "held_out": "number|null",
        "resident": {"parameters buffers gradients optimizer": "count"},
        "batch": {"fixed per_node per_edge per_graph": "number", "per_axis?": "any"},
        "update_bytes workspace_bytes version?": "count",
        "points": [{"capacity": "object", "bytes": "count"}, 1],
        "checked": {"": "null", "capacity": "object", "bytes": "count"},
        "counted?": "boolean",
        "typed?": "any",
    },
    "train-large": {
        "oneOf": [
            {
                "task": ("link",),
                "encoder": "string|null",
                "fanouts": ["count", "null"],
                "config": "object",
                "test": "object|null",
                "data policy": "string",
                "partitions": "count",
                "epochs": ["object"],
                "diverged": "count|null",
            },
            {
                "task": ("node",),
                "model data policy": "string",
                "fanouts": ["count"],
                "seed partitions": "count",
                "valid_accuracy test_accuracy": "number|null",
                "majority": "number",
                "epochs": ["object"],
                "diverged": "count|null",
            },
        ]
    },
    "train": {
        "folder metric": "string",
        "config": {
            "data model pool compile_mode device": "string",
            "target": ["string", "string", "null"],
            "task": ("auto", "regression", "binary", "classes"),
            "loss autocast": "string|null",
            "hidden layers batch_size epochs accumulate seed checkpoint_every": "count",
            "dropout": "share",
            "lr": "number",
            "schedule": ("constant", "linear", "cosine", "warmup-cosine", "plateau"),
            "clip_norm": "number|null",
            "early_stop": "count|null",
            "kernels": ("auto", "on", "off"),
            "allow_cpu": "boolean",
            "store": ("auto", "host", "device"),
            "workers": "integer|string",
        },
        "data": {"name place": "string", "graphs": "count", "splits": {"*": "count"}},
        "task": ("binary", "regression", "classes"),
        "outputs": "positive",
        "classes": ["string"],
        "parameters resumed_at": "count",
        "epochs": [
            {
                "epoch graphs": "count",
                "train_loss val_loss val_metric": "number|null",
                "seconds graphs_per_s": "number",
            }
        ],
        "test_metric": "number|null",
        "runner": {
            "model device mode mode_reason": "string",
            "autocast": "string|null",
            "buckets": [
                {
                    "bucket nodes edges graphs batches": "count",
                    "eval_batches real_graphs compiles": "count",
                    "late_compiles graph_breaks recordings": "count",
                    "node_efficiency edge_efficiency graph_efficiency": "share|null",
                    "compile_s": "number",
                    "step_ms step_ms_p90": "number|null",
                    "predicted_bytes measured_bytes": "count|null",
                },
                1,
            ],
            "fallbacks optional": ["string"],
            "versions": {"*": "string"},
            "warmup_s cold_start_s": "number|null",
            "warm_start": "boolean",
            "choices": [
                {
                    "bucket": "count",
                    "phase way reason": "string",
                    "least_fill": "share",
                    "contenders": [
                        {
                            "way": "string",
                            "rounds": "count",
                            "median_ms p10_ms p90_ms": "number|null",
                            "refused": "string|null",
                        }
                    ],
                }
            ],
            "replays": {"*": "count"},
            "attention": ATTENTION,
        },
        "files": {"*": "string"},
        "diverged stopped_early": "count|null",
        "full_batches": {"nodes? edges?": "share"},
        "memory": {
            "parameters_bytes optimizer_bytes graphs_bytes": "count|null",
            "host_peak_bytes device_peak_bytes": "count|null",
        },
    },
    "try": {
        "ok equal random": "boolean",
        "model data device date winner reason compared_with": "string",
        "graphs batch_size workers": "count",
        "capacities": ["string", 1],
        "versions": {"*": "string"},
        "seconds": "number",
        "sides": [
            {
                "name": "string",
                "graphs_per_s graphs_per_s_low graphs_per_s_high": "number|null",
                "ratio ratio_low ratio_high losses_apart": "number|null",
                "turns": "count",
                "prepare_s": "number",
                "memory": {"": "null", "held_bytes step_bytes": "count"},
                "filling": {"": "null", "nodes edges graphs": "share"},
                "losses": ["number|null"],
                "refused": "string|null",
                "equal": "boolean|null",
                "threads": "positive",
                "crawls": "boolean",
            },
            2,
        ],
        "outputs_apart": "number|null",
        "obstacles": OBSTACLES,
    },
}


def schema_of(name: str) -> dict[str, Any]:
    """Returns the JSON schema of a command's output."""
    return expand_shape(SHAPES[name])


def expand_shape(shape: Any) -> dict[str, Any]:
    """Returns the JSON schema that a shape stands for."""
    if isinstance(shape, str):
        word, *others = shape.split("|")
        schema = WORDS.get(word, {"type": word})
        return schema | {"type": [schema["type"], *others]} if others else schema
    if isinstance(shape, tuple):
        return {"enum": list(shape)}
    if isinstance(shape, list):
        item, *more = shape
        least = [value for value in more if isinstance(value, int)]
        others = [value for value in more if isinstance(value, str)]
        return {
            "type": ["array", *others],
            "items": expand_shape(item),
            "minItems": least[0] if least else 0,
        }
    if "oneOf" in shape:
        return {"oneOf": [expand_shape(each) for each in shape["oneOf"]]}
    named = {key: value for keys, value in shape.items() if keys[:1] not in ("", "*", "/")
             for key in keys.split()}  # fmt: skip
    return {
        "type": ["object", "null"] if "" in shape else "object",
        "properties": {key.removesuffix("?"): expand_shape(v) for key, v in named.items()},
        "required": [key for key in named if not key.endswith("?")],
        "patternProperties": {k[1:]: expand_shape(v) for k, v in shape.items() if k[:1] == "/"},
        "additionalProperties": expand_shape(shape["*"]) if "*" in shape else False,
    }


def parse(text: str) -> Any:
    """Returns the values of a JSON text; raises ValueError where a number is not finite."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)
