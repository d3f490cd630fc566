#!/usr/bin/env python3
"""Parses all YAML and JSON below deploy/ (but Helm's templates), and holds the chart's values against their schema.

Exit code 3: a Python module for that is missing, which the last line names.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

try:
    import yaml
except ImportError:
    print("yaml")
    sys.exit(3)


def main():
    files = [path for path in sorted((ROOT / "deploy").rglob("*")) if path.suffix in (".yaml", ".json")]
    files = [path for path in files if "templates" not in path.parts]
    for path in files:
        text = path.read_text()
        try:
            json.loads(text) if path.suffix == ".json" else list(yaml.safe_load_all(text))
        except (ValueError, yaml.YAMLError) as fault:
            sys.exit(f"{path.relative_to(ROOT)}: {fault}")
    print(f"{len(files)} files parsed")
    chart = ROOT / "deploy/helm/warmpath"
    try:
        import jsonschema
    except ImportError:
        print("jsonschema")
        sys.exit(3)
    jsonschema.validate(yaml.safe_load((chart / "values.yaml").read_text()), json.loads((chart / "values.schema.json").read_text()))
    print("values.yaml follows values.schema.json")


if __name__ == "__main__":
    main()
