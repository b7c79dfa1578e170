#!/usr/bin/env python3
"""Writes tests/data/lab/ and tests/data/lab-inventory.json: the example's lab, to be planned without hosts,
hub or weights.

The config repository is the example's with every hub source replaced by a folder. A folder holds the real
config.json fields and an index with the real tensor names; its weight files are absent on purpose, so that
what is planned can only come from the headers. Sources of the figures: the models' published config.json
files (DeepSeek-Coder 33B: 62 layers, hidden 7168, 56 heads, 8 KV heads, MLP 19200, vocabulary 32256;
LLaVA-NeXT 34B: Yi-34B with 60 layers, hidden 7168, 56 heads, 8 KV heads, MLP 20480, vocabulary 64064, and a
CLIP ViT-L/14-336 tower) and NVIDIA's data sheets for memory and bandwidth.
"""
import json
import pathlib
import re
import shutil

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LAB = HERE / "lab"
SHARD = 9_900_000_000
MIB, GIB = 1 << 20, 1 << 30

CODER = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 32013,
    "eos_token_id": 32021,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 19200,
    "max_position_embeddings": 16384,
    "model_type": "llama",
    "num_attention_heads": 56,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"factor": 4.0, "type": "linear"},
    "rope_theta": 100000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32256,
}
AWQ = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
YI = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 20480,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 56,
    "num_hidden_layers": 60,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 5000000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 64064,
}
CLIP = {
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "model_type": "clip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
    "projection_dim": 768,
    "vocab_size": 32000,
}
LLAVA = {
    "architectures": ["LlavaNextForConditionalGeneration"],
    "image_token_index": 64000,
    "model_type": "llava_next",
    "projector_hidden_act": "gelu",
    "text_config": YI,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vision_config": CLIP,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": 64064,
}


def linear(name, outputs, inputs, quantised):
    if not quantised:
        return [(f"{name}.weight", outputs * inputs * 2)]
    groups = inputs // AWQ["group_size"]
    return [
        (f"{name}.qweight", inputs * outputs // 2),
        (f"{name}.qzeros", groups * outputs // 2),
        (f"{name}.scales", groups * outputs * 2),
    ]


def llama(config, prefix="", quantised=False):
    """Tensor names and bytes of a Llama network, in the order of its layers."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield f"{prefix}model.embed_tokens.weight", config["vocab_size"] * hidden * 2
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}model.layers.{layer}."
        yield at + "input_layernorm.weight", hidden * 2
        for name, outputs, inputs in [
            ("mlp.down_proj", hidden, mlp),
            ("mlp.gate_proj", mlp, hidden),
            ("mlp.up_proj", mlp, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.v_proj", kv, hidden),
        ]:
            yield from linear(at + name, outputs, inputs, quantised)
        yield at + "post_attention_layernorm.weight", hidden * 2
    yield f"{prefix}model.norm.weight", hidden * 2
    yield f"{prefix}lm_head.weight", config["vocab_size"] * hidden * 2


def llava(config):
    vision, text = config["vision_config"], config["text_config"]
    width, mlp = vision["hidden_size"], vision["intermediate_size"]
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    yield "image_newline", text["hidden_size"] * 2
    tower = "vision_tower.vision_model."
    yield tower + "embeddings.class_embedding", width * 2
    yield tower + "embeddings.patch_embedding.weight", width * 3 * vision["patch_size"] ** 2 * 2
    yield tower + "embeddings.position_embedding.weight", (patches + 1) * width * 2
    for norm in ("pre_layrnorm", "post_layernorm"):
        for part in ("weight", "bias"):
            yield f"{tower}{norm}.{part}", width * 2
    for layer in range(vision["num_hidden_layers"]):
        at = f"{tower}encoder.layers.{layer}."
        for norm in ("layer_norm1", "layer_norm2"):
            for part in ("weight", "bias"):
                yield f"{at}{norm}.{part}", width * 2
        for name, outputs, inputs in [("mlp.fc1", mlp, width), ("mlp.fc2", width, mlp)] + [
            (f"self_attn.{part}_proj", width, width) for part in ("k", "out", "q", "v")
        ]:
            yield f"{at}{name}.weight", outputs * inputs * 2
            yield f"{at}{name}.bias", outputs * 2
    for name, inputs in (("linear_1", width), ("linear_2", text["hidden_size"])):
        yield f"multi_modal_projector.{name}.weight", text["hidden_size"] * inputs * 2
        yield f"multi_modal_projector.{name}.bias", text["hidden_size"] * 2
    yield from llama(text, "language_model.")


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def model(name, config, tensors):
    tensors = list(tensors)
    shards, room = [[]], SHARD
    for tensor, size in tensors:
        if size > room:
            shards.append([])
            room = SHARD
        shards[-1].append(tensor)
        room -= size
    files = {
        tensor: f"model-{index:05}-of-{len(shards):05}.safetensors"
        for index, shard in enumerate(shards, 1)
        for tensor in shard
    }
    total = sum(size for _, size in tensors)
    write(LAB / "models" / name / "config.json", config)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    write(LAB / "models" / name / "model.safetensors.index.json", index)


def accelerator(node, index, name, total_mib, reserved_mib, bandwidth, capability, bus):
    total, reserved = total_mib * MIB, reserved_mib * MIB
    used = 4 * MIB
    return {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "vendor": "nvidia",
        "name": name,
        "memory": {
            "total_bytes": total,
            "used_bytes": used,
            "free_bytes": total - reserved - used,
            "reserved_bytes": reserved,
            "unified": False,
        },
        "ecc": name.startswith("NVIDIA A100"),
        "compute_capability": capability,
        "bandwidth_bytes_per_s": bandwidth,
        "driver": "570.124.06",
        "mig_parent": None,
        "display": False,
        "healthy": True,
        "pci": f"00000000:{bus:02X}:00.0",
        "processes": [],
    }


def node(name, labels, cpu, ram_gib, accelerators, links, engines, distribution):
    return {
        "name": name,
        "reachable": True,
        "taken_at": "2026-01-05T09:00:00Z",
        "generation": 0,
        "labels": labels,
        "home": "/home/flock",
        "weights_path": "/home/flock/.local/share/flock/weights",
        "os": {"kernel": "6.8.0-90-generic", "distribution": distribution, "libc": "glibc 2.39"},
        "arch": "x86_64",
        "cpu": cpu,
        "ram": {"total_bytes": ram_gib * GIB, "available_bytes": (ram_gib - 6) * GIB},
        "accelerators": accelerators,
        "accelerator_links": links,
        "disks": [{"path": "/home/flock", "free_bytes": 3_000 * GIB, "total_bytes": 3_500 * GIB}],
        "ports_in_use": [22],
        "ip_local_port_range": [32768, 60999],
        "engines": engines,
        "weights": [],
        "instances": [],
    }


def pairs(node_name, count, kind, bandwidth):
    return [
        {"a": f"GPU-{node_name}-{a}", "b": f"GPU-{node_name}-{b}", "kind": kind, "bandwidth_bytes_per_s": bandwidth}
        for a in range(count)
        for b in range(a + 1, count)
    ]


def inventory():
    vllm = [{"kind": "vllm", "version": "0.11.0", "path": "/opt/vllm/bin/vllm"}]
    ubuntu = "Ubuntu 24.04.3 LTS"
    a100 = [
        accelerator("a100", i, "NVIDIA A100-SXM4-80GB", 81_920, 616, 2_039_000_000_000, "8.0", 0x07 + 0x40 * i)
        for i in range(4)
    ]
    nodes = [
        node(
            "a100", {"room": "B12", "tier": "datacenter"}, {"model": "AMD EPYC 7713", "cores": 64, "threads": 128},
            512, a100, pairs("a100", 4, "nvlink", 300_000_000_000), vllm, ubuntu,
        )
    ]
    for name in ("ada-1", "ada-2"):
        cards = [
            accelerator(name, i, "NVIDIA GeForce RTX 4090", 24_564, 427, 1_008_000_000_000, "8.9", 0x01 + 0x20 * i)
            for i in range(4)
        ]
        cpu = {"model": "AMD Ryzen Threadripper PRO 5975WX", "cores": 32, "threads": 64}
        links = pairs(name, 4, "pcie", 25_000_000_000)
        nodes.append(node(name, {"room": "B14", "tier": "consumer"}, cpu, 256, cards, links, vllm, ubuntu))
    cpu = {"model": "AMD Ryzen 7 PRO 7840U", "cores": 8, "threads": 16}
    nodes.append(node("laptop", {"tier": "laptop"}, cpu, 32, [], [], [], "Debian GNU/Linux 13 (trixie)"))
    member = {
        "generation": 0, "nodes": [], "lease": None, "protections": [], "holds": [], "pauses": [], "applied": None,
    }
    return {
        "format": 1, "taken_at": "2026-01-05T09:00:00Z", "member": member, "nodes": nodes, "links": [], "egress": [],
    }


def main():
    shutil.rmtree(LAB, ignore_errors=True)
    LAB.mkdir()
    example = (ROOT / "cluster.kdl.example").read_text()
    (LAB / "cluster.kdl").write_text(re.sub(r'"hf:[^/"]+/([^"]+)"', r'"path:models/\1"', example))
    shutil.copytree(ROOT / "workflows", LAB / "workflows")
    shutil.copytree(ROOT / "policies", LAB / "policies")
    model("llava-v1.6-34b-hf", LLAVA, llava(LLAVA))
    model("deepseek-coder-33b-instruct", CODER, llama(CODER))
    quantised = CODER | {"torch_dtype": "float16", "quantization_config": AWQ}
    model("deepseek-coder-33B-instruct-AWQ", quantised, llama(CODER, quantised=True))
    write(HERE / "lab-inventory.json", inventory())


main()
