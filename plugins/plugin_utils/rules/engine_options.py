# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Options of prefill and decode that must fit together, and options that do nothing or harm on one side."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import typing as t

from .. import tables
from ..command import (
    API_KEY_VARIABLE,
    PLANNED_ARGUMENTS,
    Arguments,
    api_keys,
    canonical,
    flag,
    json_option,
    option,
)
from ..model import ROLES, Finding, Placement, Role
from ..tables import HYBRID_CONNECTOR
from .context import Context, error, warning

_DSPARK_MINIMUM = 5
_SPECULATIVE_KEYS = ("num_speculative_tokens", "method", "model")


# What a JSON option holds, by its kind in the option table: Python type, JSON's word for it, YAML's.
_JSON_SHAPES: dict[str, tuple[type | tuple[type, ...], str, str]] = {
    "json": (dict, "object", "mapping"),
    "json-list": ((list, tuple), "list", "list"),
}


def json_text(context: Context) -> t.Iterator[Finding]:
    """A JSON option given as text must be JSON: Python's True and single quotes reach the engine as they are."""
    for role, (kind, (shape, in_json, in_yaml)) in itertools.product(ROLES, _JSON_SHAPES.items()):
        for placement, args in context.of_role(role):
            for name in sorted((tables.vllm_options(kind) & set(args)).difference(PLANNED_ARGUMENTS)):
                value = option(args, name)
                problem = _json_problem(value, shape)
                if problem:
                    yield error(
                        "json-option",
                        placement.host,
                        _variable(args, name),
                        value,
                        f"--{name} of instance {placement.instance.name} is no JSON {in_json}: {problem}",
                        f"give it as a YAML {in_yaml}; the plan writes the JSON",
                    )


def _json_problem(value: t.Any, shape: type | tuple[type, ...]) -> str | None:
    if value is None or isinstance(value, shape):
        return None
    if not isinstance(value, str):
        return f"it is {value!r}"
    try:
        loaded = json.loads(value)
    except ValueError as problem:
        return str(problem)
    return None if isinstance(loaded, shape) else f"it is {json.dumps(loaded, ensure_ascii=False)}"


def text_booleans(context: Context) -> t.Iterator[Finding]:
    for placement, variable, layer in _layers(context):
        for name, value in layer.items():
            if not isinstance(value, str) or value.lower() not in ("true", "false", "none", "null"):
                continue
            taken = flag(canonical(name, value), value)
            yield warning(
                "text-option",
                placement.host,
                f"{variable}.{name}",
                value,
                f"--{name} is given the text {value!r}; "
                + (
                    "vLLM has a flag of this name, so it is taken for one"
                    if isinstance(taken, bool)
                    else "it is passed as it is"
                ),
                f"write {value.lower().replace('none', 'null')} without quotes if a flag (or no option at all) is meant",
            )


def _layers(context: Context) -> t.Iterator[tuple[Placement, str, dict[str, t.Any]]]:
    """Every mapping of options once, with a placement it concerns."""
    seen: set[int] = set()
    for placement in context.everywhere:
        for variable, layer in (
            ("pd_engine_args_common", context.cluster.engine_args_common),
            ("pd_engine_args", placement.instance.engine_args),
            ("pd_engine_args_extra", placement.member.engine_args_extra),
        ):
            if id(layer) not in seen:
                seen.add(id(layer))
                yield placement, variable, layer


_Speculative = tuple[Placement, str, dict[str, t.Any]]


def speculative(context: Context) -> t.Iterator[Finding]:
    """num_speculative_tokens of prefill against decode, by model family and method."""
    prefill, decode = _speculative(context, "prefill"), _speculative(context, "decode")
    wrong = [entry for entry in (*prefill, *decode) if not _tokens_fit(entry[2])]
    for placement, variable, config in wrong:
        tokens = config["num_speculative_tokens"]
        yield error(
            "speculative-tokens",
            placement.host,
            variable,
            tokens,
            f"num_speculative_tokens of {placement.instance.role} instance {placement.instance.name} is {tokens!r}",
            "give a whole number, 1 or more",
        )
    for placement, variable, config in [*_distinct(prefill), *_distinct(decode)]:
        yield from _misspelt_keys(placement, variable, config)
    if wrong:
        return
    for p_entry, d_entry in itertools.product(_distinct(prefill), _distinct(decode)):
        yield from _speculative_pair(context, p_entry, d_entry)


def _misspelt_keys(placement: Placement, variable: str, config: dict[str, t.Any]) -> t.Iterator[Finding]:
    """A key that is close to one of the two that matter here is not read, and engines end at it."""
    for key in config:
        near = [] if key in _SPECULATIVE_KEYS else difflib.get_close_matches(key, _SPECULATIVE_KEYS, n=1, cutoff=0.8)
        if near:
            yield error(
                "option-value",
                placement.host,
                variable.removesuffix(".num_speculative_tokens"),
                key,
                f"--speculative-config of instance {placement.instance.name} has the key {key!r}",
                f"did you mean {near[0]}?",
            )


def _distinct(entries: list[_Speculative]) -> list[_Speculative]:
    """One of each configuration: usually all instances and hosts of a role have the same."""
    once: dict[str, _Speculative] = {}
    for entry in entries:
        once.setdefault(json.dumps(entry[2], sort_keys=True), entry)
    return list(once.values())


def _tokens_fit(config: dict[str, t.Any]) -> bool:
    tokens = config.get("num_speculative_tokens", 1)
    return isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 1


def _speculative_pair(context: Context, p_entry: _Speculative, d_entry: _Speculative) -> t.Iterator[Finding]:
    prefill, p_variable, p_config = p_entry
    decode, variable, d_config = d_entry
    p_tokens, d_tokens = p_config.get("num_speculative_tokens"), d_config.get("num_speculative_tokens")
    names = (
        f"prefill ({prefill.instance.name} on {prefill.host}) has {p_tokens or 'none'}, "
        f"decode ({decode.instance.name} on {decode.host}) {d_tokens or 'none'}"
    )
    methods = {str(config["method"]) for config in (p_config, d_config) if config.get("method") is not None}
    if len(methods) > 1:
        yield error(
            "speculative-method",
            decode.host,
            variable.replace("num_speculative_tokens", "method"),
            d_config.get("method"),
            f"the speculative method is {p_config.get('method')!r} on prefill and {d_config.get('method')!r} on decode",
            "use the same method on both sides",
        )
    elif methods == {"dspark"}:
        if p_tokens != d_tokens or (p_tokens or 0) < _DSPARK_MINIMUM:
            yield error(
                "speculative-tokens",
                decode.host,
                variable,
                d_tokens,
                f"method dspark needs equal num_speculative_tokens of {_DSPARK_MINIMUM} or more on both sides: {names}",
                "set the same number, 5 or more, for prefill and decode",
            )
    elif context.cluster.model_family == "hybrid_mamba":
        if p_tokens != d_tokens:
            yield error(
                "speculative-tokens",
                decode.host,
                variable,
                d_tokens,
                f"hybrid_mamba models need equal num_speculative_tokens on both sides: {names}",
                "set the same number for prefill and decode",
            )
    elif p_tokens is not None and d_tokens is None:
        yield error(
            "speculative-tokens",
            decode.host,
            variable,
            d_tokens,
            f"with speculative decoding decode needs num_speculative_tokens of 1 or more: {names}",
            "set it for decode, or drop it for prefill",
        )
    elif (p_tokens or 1) > 1:
        yield warning(
            "speculative-tokens",
            prefill.host,
            p_variable,
            p_tokens,
            f"the guide asks for num_speculative_tokens 1 on prefill (more only costs time there): {names}",
            "set 1 for prefill unless you follow a recipe that has measured otherwise",
        )


def _speculative(context: Context, role: Role) -> list[_Speculative]:
    return [
        (
            placement,
            _field(args, "speculative-config", "num_speculative_tokens"),
            json_option(args, "speculative-config"),
        )
        for placement, args in context.of_role(role)
    ]


def prefix_cache_hybrid(context: Context) -> t.Iterator[Finding]:
    """Decode of hybrid models hangs after a prefix-cache hit (known upstream limit)."""
    if context.cluster.model_family != "hybrid_mamba":
        return
    for role in ROLES:
        say = warning if role == "prefill" else error
        for placement, args in context.of_role(role):
            if option(args, "enable-prefix-caching") is True:
                yield say(
                    "hybrid-prefix-cache",
                    placement.host,
                    _variable(args, "enable-prefix-caching"),
                    True,
                    f"{role} instance {placement.instance.name} of a hybrid_mamba model has prefix caching on; a hit can hang it",
                    f"set no-enable-prefix-caching: true for {role}",
                )


def hybrid_manager(context: Context) -> t.Iterator[Finding]:
    if context.cluster.connector != HYBRID_CONNECTOR:
        return
    for role in ROLES:
        for placement, args in context.of_role(role):
            if option(args, "disable-hybrid-kv-cache-manager") is not False:
                yield error(
                    "hybrid-manager",
                    placement.host,
                    _variable(args, "disable-hybrid-kv-cache-manager"),
                    option(args, "disable-hybrid-kv-cache-manager"),
                    f"{HYBRID_CONNECTOR} needs the hybrid KV cache manager, which vLLM switches off beside a connector "
                    f"(instance {placement.instance.name})",
                    "set no-disable-hybrid-kv-cache-manager: true in pd_engine_args_common",
                )


def block_sizes(context: Context) -> t.Iterator[Finding]:
    sizes = {role: _block_sizes(context, role) for role in ROLES}
    for (p_block, (prefill, _p_args)), (d_block, (decode, args)) in itertools.product(
        sizes["prefill"].items(), sizes["decode"].items()
    ):
        problem = _block_problem(context, decode, p_block, d_block)
        if problem:
            where = f"{problem} (prefill {prefill.instance.name} on {prefill.host}, decode {decode.instance.name} on {decode.host})"
            variable = _variable(args, "block-size")
            yield error("block-size", decode.host, variable, d_block, where, "use one block-size on both sides")


def _block_sizes(context: Context, role: Role) -> dict[int, tuple[Placement, Arguments]]:
    """Each block size of a role, with a placement that has it."""
    found: dict[int, tuple[Placement, Arguments]] = {}
    for placement, args in context.of_role(role):
        size = _size(option(args, "block-size"))
        if size is not None:
            found.setdefault(size, (placement, args))
    return found


def _block_problem(context: Context, decode: Placement, p_block: int, d_block: int) -> str | None:
    connector, dcp_size = context.cluster.connector, decode.instance.dcp_size
    if connector == "MooncakeLayerwiseConnector":
        if d_block % p_block:
            return f"decode's block-size {d_block} is no multiple of prefill's {p_block}, as {connector} needs"
    elif p_block % d_block and d_block % p_block:
        return f"block-size {p_block} of prefill and {d_block} of decode do not divide each other"
    elif dcp_size > 1 and p_block > d_block:
        return f"with pd_dcp_size {dcp_size} prefill's block-size {p_block} may not exceed decode's {d_block}"
    return None


# Options that decide how an element of the KV cache is stored, with the words that leave it to the model.
_KV_TYPES = ("kv-cache-dtype", "dtype")


def kv_cache_types(context: Context) -> t.Iterator[Finding]:
    """Decode reads the bytes that prefill wrote, in whatever type; nothing at run time looks at that."""
    for name in _KV_TYPES:
        seen: dict[str, tuple[Placement, Arguments]] = {}
        for placement, args in [*context.of_role("prefill"), *context.of_role("decode")]:
            value = option(args, name)
            given = "auto" if value is None else str(value)
            if name == "dtype" and given == "auto":
                continue  # the model's own, which may be the one that others name
            seen.setdefault(given, (placement, args))
        if len(seen) < 2:
            continue
        (first_value, (first, _args)), (value, (other, args)) = list(seen.items())[:2]
        yield error(
            "kv-cache-dtype",
            other.host,
            _variable(args, name),
            option(args, name),
            f"--{name} is {first_value} in instance {first.instance.name} ({first.host}) and {value} in {other.instance.name} "
            f"({other.host}): decode would read KV cache of another type than it has",
            f"give all instances the same {name}, in pd_engine_args_common",
        )


def interleave(context: Context) -> t.Iterator[Finding]:
    """With context parallelism the interleave must equal the block size (upstream platform check)."""
    for role in ROLES:
        for placement, args in context.of_role(role):
            instance = placement.instance
            block, source = _size(option(args, "block-size")), ""
            if option(args, "block-size") is None and context.cluster.model_family != "hybrid_mamba":
                # The platform's; hybrid models get one that fits their state.
                block, source = tables.default_block_size(), " (the default)"
            if instance.pcp_size * instance.dcp_size == 1 or block is None:
                continue
            given = option(args, "cp-kv-cache-interleave-size")
            size = 1 if given is None else _size(given)
            if size != block:
                say = warning if given is None else error
                yield say(
                    "cp-interleave",
                    placement.host,
                    _variable(args, "cp-kv-cache-interleave-size"),
                    given,
                    f"cp-kv-cache-interleave-size {size}{' (the default)' if given is None else ''} and block-size {block}{source} "
                    f"of instance {instance.name} differ",
                    f"set cp-kv-cache-interleave-size: {block}",
                )


def recompute_scheduler(context: Context) -> t.Iterator[Finding]:
    for placement, args in context.of_role("prefill"):
        if json_option(args, "additional-config").get("recompute_scheduler_enable"):
            yield warning(
                "recompute-on-prefill",
                placement.host,
                f"{_variable(args, 'additional-config')}.recompute_scheduler_enable",
                True,
                f"recompute_scheduler_enable is ignored on prefill (instance {placement.instance.name})",
                "set it for decode only",
            )


def dead_keys(context: Context) -> t.Iterator[Finding]:
    told: set[str] = set()
    for placement in context.placements:
        extra = placement.member.kv_transfer_config.get("kv_connector_extra_config")
        if isinstance(extra, dict) and "use_ascend_direct" in extra and placement.instance.name not in told:
            told.add(placement.instance.name)
            yield warning(
                "dead-key",
                placement.host,
                "pd_kv_transfer_config.kv_connector_extra_config.use_ascend_direct",
                extra["use_ascend_direct"],
                "use_ascend_direct is read by no release of vLLM-Ascend",
                "leave it out",
            )


def expert_parallel_back_to_back(context: Context) -> t.Iterator[Finding]:
    """The fused collective needs a full mesh; direct cables join chips of equal number only."""
    if context.cluster.topology != "back_to_back":
        return
    for role in ROLES:
        for placement, args in context.of_role(role):
            instance = placement.instance
            if len(instance.members) > 1 and option(args, "enable-expert-parallel") is True:
                yield error(
                    "expert-parallel-back-to-back",
                    placement.host,
                    _variable(args, "enable-expert-parallel"),
                    True,
                    f"instance {instance.name} spreads its experts over {', '.join(instance.hosts[:4])}, but pd_topology is back_to_back: "
                    "there is no path between chips of different number",
                    "keep the instance on one host, drop enable-expert-parallel, or connect the hosts by a switch (pd_topology: switched)",
                )


def unknown_options(context: Context) -> t.Iterator[Finding]:
    """Options that this vLLM has not; it would end at them, after the fleet has been started."""
    if not tables.vllm_options_known(context.cluster.versions):
        return
    known = tables.vllm_option_names()
    for placement, variable, layer in _layers(context):
        for name, value in layer.items():
            plain = canonical(name, flag(canonical(name, value), value)).partition(".")[0]
            if plain in known or plain.removeprefix("no-") in known or plain in PLANNED_ARGUMENTS or value is None:
                continue
            near = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
            yield warning(
                "unknown-option",
                placement.host,
                f"{variable}.{name}",
                value,
                f"vLLM {context.cluster.versions.vllm_ascend} has no option --{name}, as far as the option table knows",
                f"did you mean {near[0]}?" if near else "check the name in `vllm serve --help` of the image",
            )


def option_values(context: Context) -> t.Iterator[Finding]:
    """Values that the parser of this vLLM would end at."""
    if not tables.vllm_options_known(context.cluster.versions):
        return
    for placement, variable, layer in _layers(context):
        for name, raw in layer.items():
            value = flag(canonical(name, raw), raw)
            wanted = _misfit(canonical(name, value), value) or _out_of_range(canonical(name, value), value)
            if wanted and value is not None:
                yield error(
                    "option-value",
                    placement.host,
                    f"{variable}.{name}",
                    raw,
                    f"--{name} takes {wanted}, but is given {raw!r}",
                    f"give {wanted}, or null to drop the option",
                )


def _out_of_range(name: str, value: t.Any) -> str | None:
    """What the option takes, when a number is outside of it."""
    bounds = tables.vllm_option_ranges().get(name)
    if bounds is None or isinstance(value, bool) or not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", str(value)):
        return None
    number, (low, high) = float(value), bounds
    if (number > 0 if low == 0 else number >= low) and (high is None or number <= high):
        return None
    return f"a number above 0 and at most {high}" if high is not None else f"a whole number, {low} or more"


def _misfit(name: str, value: t.Any) -> str | None:
    """What the option takes, when the value is something else."""
    if name in tables.vllm_options("flag"):
        return None if isinstance(value, bool) else "no value: true or false"
    for kind, fits, wanted in (
        ("integer", _is_integer, "a whole number"),
        ("number", _is_number, "a number"),
        ("size", _is_size, "a whole number, also as 16k or 1.5m"),
        ("size-or-auto", _is_size_or_auto, "a whole number, also as 16k or 1.5m, or -1 or auto"),
        ("words", _is_words, "a word or a list of words, none of them beginning with '-'"),
        ("text", lambda item: isinstance(item, (str, int, float)) and not isinstance(item, bool), "a word"),
    ):
        if name in tables.vllm_options(kind) and not fits(value):
            return wanted
    return None


def _is_integer(value: t.Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) is not None)


def _is_number(value: t.Any) -> bool:
    if isinstance(value, (int, float)):
        return not isinstance(value, bool)
    return isinstance(value, str) and re.fullmatch(r"-?[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?", value) is not None


def _is_size(value: t.Any) -> bool:
    """vLLM's numbers for people: k, m, g, t count by 1000 and take a fraction, K, M, G, T by 1024 and take none."""
    if isinstance(value, str):
        return re.fullmatch(r"[0-9]{1,18}[KMGT]?|[0-9]{1,18}(\.[0-9]{1,18})?[kmgt]", value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size_or_auto(value: t.Any) -> bool:
    return _is_size(value) or (not isinstance(value, bool) and str(value).lower() in ("-1", "auto"))


def _is_words(value: t.Any) -> bool:
    words = value if isinstance(value, (list, tuple)) else [value]
    return bool(words) and not any(isinstance(word, bool) or str(word).startswith("-") for word in words)


def common_api_key(context: Context) -> t.Iterator[Finding]:
    """Upstream's proxies send one key to all engines."""
    first: Placement | None = None
    common: list[str] = []
    for placement, args in context.served:
        keys = api_keys(args, placement.processes[0].env)
        if not keys:
            continue
        if first is None:
            first, common = placement, keys
            continue
        common = [key for key in common if key in keys]
        if not common:
            yield error(
                "api-keys-differ",
                placement.host,
                _variable(args, "api-key") if "api-key" in args else f"pd_engine_env.{API_KEY_VARIABLE}",
                keys,
                f"instance {placement.instance.name} on {placement.host} shares no API key with those before it, the first of them "
                f"{first.instance.name} on {first.host}; the proxy sends one key to all engines",
                "give all engines one key in common, first in the list: api-key in pd_engine_args_common",
            )
            return


def empty_api_keys(context: Context) -> t.Iterator[Finding]:
    """vLLM drops empty keys and asks for none when no other is left."""
    for placement, variable, layer in _layers(context):
        for name, raw in layer.items():
            words = raw if isinstance(raw, (list, tuple)) else [raw]
            if canonical(name, raw) == "api-key" and "" in words:
                yield error(
                    "option-value",
                    placement.host,
                    f"{variable}.{name}",
                    raw,
                    f"--{name} has an empty key, which vLLM drops; without another one everybody may ask these engines",
                    "give the key (does the template or lookup that should tell it find it?), or null to drop the option",
                )


def _size(value: t.Any) -> int | None:
    """A positive whole number, also as text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _field(args: Arguments, name: str, key: str) -> str:
    """Where a key of a JSON option comes from: as an option of its own, or inside the mapping."""
    dotted = args.get(f"{name}.{key}")
    return f"{dotted.variable}.{dotted.name}" if dotted else f"{_variable(args, name)}.{key}"


def _variable(args: Arguments, name: str) -> str:
    argument = args.get(name)
    return f"{argument.variable}.{argument.name}" if argument else f"pd_engine_args.{name}"


RULES = (
    json_text,
    text_booleans,
    unknown_options,
    option_values,
    speculative,
    prefix_cache_hybrid,
    hybrid_manager,
    block_sizes,
    kv_cache_types,
    interleave,
    recompute_scheduler,
    dead_keys,
    common_api_key,
    empty_api_keys,
    expert_parallel_back_to_back,
)
