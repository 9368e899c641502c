"""Makes a small Llama of random weights, with a tokenizer trained on this repository's pages.

    make_model.py DIR REPOSITORY
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LAYERS, HIDDEN, HEADS, VOCABULARY = 2, 64, 2, 2048
SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(out, repository):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    texts = [page.read_text(errors="replace") for page in sorted(repository.glob("docs/**/*.md"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>",
        "model_max_length": 4096, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "add_bos_token": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def make_weights(out, vocabulary):
    size = HIDDEN // HEADS
    tokens = {"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "head_dim": size, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32", "attention_bias": False, "mlp_bias": False, **tokens,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "generation_config.json").write_text(json.dumps(tokens))
    torch.manual_seed(1)
    weights = {
        "model.embed_tokens.weight": torch.randn(vocabulary, HIDDEN) * 0.08,
        "lm_head.weight": torch.randn(vocabulary, HIDDEN) * 0.08,
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}self_attn.{name}.weight"] = torch.randn(HIDDEN, HIDDEN) * 0.08
        for name, rows, columns in (("gate_proj", 2, 1), ("up_proj", 2, 1), ("down_proj", 1, 2)):
            weights[f"{prefix}mlp.{name}.weight"] = torch.randn(rows * HIDDEN, columns * HIDDEN) * 0.08
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_weights(folder, make_tokenizer(folder, Path(sys.argv[2])))
