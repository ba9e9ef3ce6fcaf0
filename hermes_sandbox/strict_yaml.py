"""YAML as people mean it. The only file that imports PyYAML, and it is imported where there is a config.yaml.

PyYAML reads YAML 1.1, in which 1:30 is 90 and 010 is 8, and of a key that is written twice it keeps the last. Here
numbers are decimal, what is none is text, which whoever wants a number refuses by name, and a key that is there twice
is an error with both lines. An error never shows what a line says: it may hold a secret.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # a PyYAML that was built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

MAX_NODES = 100_000  # with each alias as what it stands for: thirty short lines can mean a thousand million
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(_Base):
    yaml_implicit_resolvers = {  # noqa: RUF012  the class attribute is how PyYAML is told
        first: [(tag, pattern) for tag, pattern in rules if tag not in (_INT, _FLOAT)]
        for first, rules in _Base.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?\Z"), list("-+0123456789"))


def load(text: str) -> Any:
    """The one document in `text`, as plain data. Raises ValueError with the line of what is wrong."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_NODES:
            raise ValueError(f"it means more than {MAX_NODES} values, once each alias is what it stands for")
        _refuse_doubles(node)
        return _built(loader, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = re.sub(r"'[^']{2,}'", "...", error.problem or error.context or "it is no YAML")
        raise ValueError(f"line {mark.line + 1 if mark else '?'}: {problem}") from None
    except yaml.YAMLError:
        raise ValueError("it holds characters that YAML has not") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _built(loader: _Loader, node: yaml.Node) -> Any:
    try:
        return loader.construct_document(node)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # they all show the value
        raise ValueError("a date, or what stands behind a tag (!!int), is none") from None


def _size(node: Any, known: dict[int, int]) -> int:
    """How many nodes it is, each alias counted anew. One that holds itself is too many."""
    if (size := known.get(id(node))) is not None:
        return size
    known[id(node)] = MAX_NODES + 1
    children: list[Any] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [each for pair in node.value for each in pair]
    size = known[id(node)] = 1 + sum(_size(each, known) for each in children)
    return size


def _refuse_doubles(top: yaml.Node) -> None:
    """Looks at the nodes, not at the dicts that are made of them: a key from a merge (`<<`) may be written again."""
    todo: list[tuple[str, Any]] = [("", top)]
    seen: set[int] = set()  # an alias is the same node again
    for path, node in todo:
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo += [(f"{path}[{index}]", each) for index, each in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                where = f"{path}.{key.value}".lstrip(".")
                if (first := lines.get(name := (key.tag, str(key.value)))) is not None:
                    raise ValueError(f"{where} is written twice, in lines {first} and {line}")
                lines[name] = line
                todo.append((where, value))
