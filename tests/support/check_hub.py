#!/usr/bin/env python3
"""Asks a stand-in hub with huggingface_hub, the hub's own client.

    check_hub.py                     starts a stand-in, and holds what the client says against what was put there
    check_hub.py ask ENDPOINT JSON   prints what the client says to each of a list of [TOKEN, REPOSITORY, REVISION,
                                     FILE], all but the second of which may be empty: {id, sha, gated, license,
                                     base_model, files, sha256 (of FILE)} or {error}
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def client(endpoint, token, home):
    """The client, which reads its settings when it is imported."""
    os.environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*", "HF_HUB_VERBOSITY": "error"}
    import huggingface_hub

    return huggingface_hub, huggingface_hub.HfApi(endpoint=endpoint, token=token or False)


def ask(endpoint, token, repository, revision=None, file=None):
    with tempfile.TemporaryDirectory() as home:
        hub, api = client(endpoint, token, home)
        try:
            info = api.model_info(repository, revision=revision)
            files = []
            for entry in api.list_repo_tree(info.id, recursive=True, revision=info.sha):
                if isinstance(entry, hub.hf_api.RepoFile):
                    files.append([entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None])
            card = info.card_data.to_dict() if info.card_data else {}
            base = card.get("base_model") or []
            answer = {
                "id": info.id,
                "sha": info.sha,
                "gated": bool(info.gated),
                "license": card.get("license"),
                "base_model": [base] if isinstance(base, str) else base,
                "files": sorted(files),
            }
            if file:
                # No read of the token file: what is passed is what is sent.
                path = api.hf_hub_download(repository, file, revision=info.sha, cache_dir=home)
                with open(path, "rb") as source:
                    answer["sha256"] = hashlib.sha256(source.read()).hexdigest()
            return answer
        except Exception as error:  # noqa: BLE001 - the name of the class is what is asked for
            return {"error": type(error).__name__}


COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLD = "f" * 40


def main():
    with tempfile.TemporaryDirectory() as folder:
        weights = bytes(range(256)) * 9000

        def repository(name, card, files):
            path = os.path.join(folder, name)
            for file, content in files.items():
                os.makedirs(os.path.dirname(os.path.join(path, file)), exist_ok=True)
                with open(os.path.join(path, file), "wb") as out:
                    out.write(content)
            with open(os.path.join(path, ".repo.json"), "w", encoding="utf-8") as out:
                json.dump(card, out)

        both = {"config.json": b"{}", "q4/a b#1.gguf": weights}
        card = {"commit": COMMIT, "license": "mit", "base_model": "big/base", "relation": "quantized"}
        repository("ada/open", {**card, "tags": {"v1": OLD}, "many": {"count": 2500}, "renamed_from": ["ada/old"]}, both)
        repository("ada/gated", {"gated": "manual", "access": ["hf_ada"]}, both)
        repository("ada/private", {"private": True, "access": ["hf_ada"]}, both)
        repository("ada/blocked", {"disabled": True}, both)
        with subprocess.Popen(
            [sys.executable, os.path.join(HERE, "hub.py"), "--root", folder], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                endpoint = server.stdout.readline().split()[1]
                check(endpoint, folder, weights)
            finally:
                server.kill()


def check(endpoint, folder, weights):
    _, api = client(endpoint, "", folder)
    wrong = []

    def expect(what, found, expected):
        if found != expected:
            wrong.append(f"{what}: {found!r}, and not {expected!r}")

    found = ask(endpoint, "", "ada/old", file="q4/a b#1.gguf")
    digest = hashlib.sha256(weights).hexdigest()
    expect("a renamed repository", (found.get("id"), found.get("sha")), ("ada/open", COMMIT))
    expect("its card", (found.get("license"), found.get("base_model")), ("mit", ["big/base"]))
    expect("its files", len(found.get("files", [])), 2502)
    expect("its weights", ["q4/a b#1.gguf", len(weights), digest] in found.get("files", []), True)
    expect("the bytes of its weights", found.get("sha256"), digest)
    small = ask(endpoint, "", "ada/open", "v1", "config.json")
    expect("a tag", small.get("sha"), OLD)
    expect("a small file", small.get("sha256"), hashlib.sha256(b"{}").hexdigest())
    for token, name, revision, file, error in [
        ("", "ada/missing", None, None, "RepositoryNotFoundError"),
        ("hf_bob", "ada/missing", None, None, "RepositoryNotFoundError"),
        ("", "ada/private", None, None, "RepositoryNotFoundError"),
        ("hf_bob", "ada/private", None, None, "RepositoryNotFoundError"),
        ("", "ada/gated", None, "config.json", "GatedRepoError"),
        ("hf_bob", "ada/gated", None, "q4/a b#1.gguf", "GatedRepoError"),
        ("", "ada/blocked", None, None, "DisabledRepoError"),
        ("", "ada/open", "nope", None, "RevisionNotFoundError"),
        ("", "ada/open", None, "nope.gguf", "RemoteEntryNotFoundError"),
    ]:
        found = ask(endpoint, token, name, revision, file)
        expect(f"{name} {revision or ''} {file or ''} with {token or 'no token'}", found.get("error"), error)
    expect("a token with access", ask(endpoint, "hf_ada", "ada/gated", None, "config.json").get("error"), None)
    expect("a wrong token", ask(endpoint, "stale", "ada/open").get("error"), "HfHubHTTPError")
    models = [model.id for model in api.list_models(author="ada", filter="base_model:quantized:big/base")]
    expect("derivatives", models, ["ada/open"])
    info = api.model_info("ada/open", files_metadata=True)
    sizes = {sibling.rfilename: (sibling.size, sibling.lfs and sibling.lfs.sha256) for sibling in info.siblings}
    expect("siblings with metadata", sizes.get("q4/a b#1.gguf"), (len(weights), digest))
    paths = api.get_paths_info("ada/open", ["config.json", "nope", "q4/a b#1.gguf"])
    expect("paths-info", sorted(path.path for path in paths), ["config.json", "q4/a b#1.gguf"])
    import huggingface_hub

    url = huggingface_hub.hf_hub_url("ada/open", "q4/a b#1.gguf", endpoint=endpoint)
    metadata = huggingface_hub.get_hf_file_metadata(url, token=False)
    expect("metadata", (metadata.commit_hash, metadata.etag, metadata.size), (COMMIT, digest, len(weights)))
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} answers of the stand-in are not the hub's to huggingface_hub {huggingface_hub.__version__}")
    print(f"huggingface_hub {huggingface_hub.__version__} takes the stand-in for a hub")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        questions = json.loads(sys.argv[3])
        answers = [ask(sys.argv[2], token, *(word or None for word in words)) for token, *words in questions]
        print(json.dumps(answers))
    else:
        main()
