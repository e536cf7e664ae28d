"""One example for every rule of preflight: the settings that break it."""

UNREAD = {
    "rl.loss_type": "seq-mean-token-mean",
    "rl.temperature": 0.5,
    "rl.unbiased_advantage": True,
    "rl.advantage": "leave_one_out",
    "rl.kl_beta": 0.1,
    "rl.kl_estimator": "k1",
    "rl.entropy_coef": 0.1,
    "rl.engine_correction": "mask",
    "rl.epsilon_low": 0.1,
    "rl.epsilon_high": 0.3,
    "rl.lower_bound_ratio": 2.0,
    "rl.importance_sampling_level": "sequence",
    "rl.sapo_temperature_positive": 2.0,
    "rl.sapo_temperature_negative": 2.0,
}
"""A value for every knob that `legacy_pg`, which reads none, refuses."""

BROKEN = [
    (
        "rl.lower_bound_ratio",
        "sequence-level ratio",
        "rl.importance_sampling_level=sequence rl.epsilon_high=4e-4",
    ),
    ("rl.lower_bound_ratio", "must exceed 1", "rl.lower_bound_ratio=0.5"),
    ("rl.temperature", "that was sampled", "rl.temperature=0.7"),
    ("rollout.temperature", "no loss temperature", "rollout.temperature=0.7 LEGACY"),
    ("rollout.temperature", "greedy responses", "rollout.temperature=0"),
    ("rollout.top_p", "renormalise", "rollout.top_p=0.9"),
    ("rollout.top_k", "renormalise", "rollout.top_k=5"),
    ("rollout.min_p", "renormalise", "rollout.min_p=0.1"),
    ("rollout.group_size", "at least 2", "rollout.group_size=1"),
    ("job.output_root", "file system", "job.output_root=s3://bucket/runs"),
    ("rl.mini_batches", "must divide", "rl.mini_batches=5"),
    ("reward.provider", "reward.parts names", "reward.provider=format reward.parts.length=1"),
    ("reward.parts", "weight 0", "reward.parts.length=0"),
    ("reward.arguments", "takes none", "reward.arguments.marker=x"),
    ("reward.timeout_s", "no process", "reward.timeout_s=3"),
    (
        "reward.timeout_s",
        "waits for one reply",
        "reward.provider=tasks.rewards.judge:judge reward.timeout_s=20",
    ),
    ("reward.num_workers", "no process", "reward.num_workers=3"),
    ("reward.worker_memory_mib", "no process", "reward.worker_memory_mib=3"),
    (
        "reward.overlong_buffer_tokens",
        "cannot use",
        "reward.overlong_buffer_tokens=2 rl.advantage=maxrl",
    ),
    ("rl.kl_estimator", "rl.kl_beta=0", "rl.kl_estimator=k1"),
    ("rl.engine_correction_low", "sequence-mask only", "rl.engine_correction_low=0.4"),
    ("rl.engine_correction_high", "rl.engine_correction=none", "rl.engine_correction_high=3"),
    (
        "rl.unbiased_advantage",
        "rl.advantage=group",
        "rl.advantage=maxrl rl.unbiased_advantage=true",
    ),
    ("rl.pass_k", "rl.advantage=pass_at_k only", "rl.pass_k=2"),
    ("rl.pass_k", "rollout.group_size", "rl.advantage=pass_at_k rl.pass_k=99"),
    (
        "rl.certified_deterministic_forward",
        "importance ratios",
        "rl.certified_deterministic_forward=true LEGACY",
    ),
    ("model.name_or_path", "source=pretrained only", "model.name_or_path=x"),
    ("model.name_or_path", "needs a Hugging Face", "model.source=pretrained"),
    ("model.revision", "source=pretrained only", "model.source=smollm2 model.revision=x"),
    (
        "model.embedded",
        "source=embedded only",
        "model.source=smollm2 model.embedded.num_layers=3",
    ),
    ("model.embedded.num_heads", "multiple of twice", "model.embedded.num_heads=3"),
    ("rollout.max_prompt_tokens", "2 * data.digits + 2", "rollout.max_prompt_tokens=5"),
    ("rollout.max_tokens", "data.digits + 1", "rollout.max_tokens=3"),
    ("data.num_held_out", "fewer training problems", "data.num_held_out=9999"),
    ("evaluation.num_prompts", "data.num_held_out", "evaluation.num_prompts=501"),
    ("evaluation.num_samples", "greedy samples", "evaluation.num_samples=2"),
    ("evaluation.pass_at", "at least k samples", "evaluation.pass_at=[1,2]"),
    (
        "evaluation.correct_part",
        "exactly one of",
        "reward.parts.length=1 reward.parts.format=1",
    ),
    (
        "evaluation.correct_part",
        "that the reward gives",
        "reward.parts.gsm8k=1 evaluation.correct_part=exact_match",
    ),
    ("reward.overlong_buffer_tokens", "rollout.max_tokens", "reward.overlong_buffer_tokens=5"),
    ("reward.overlong_penalty", "overlong_buffer_tokens=0", "reward.overlong_penalty=2"),
    (
        "trainer.final_lr_fraction",
        "lr_schedule=constant",
        "trainer.lr_schedule=constant trainer.final_lr_fraction=0.5",
    ),
    ("model.lora", "model.lora.rank=0", "model.lora.alpha=8"),
    (
        "model.lora.target_modules",
        "no layer",
        "model.lora.rank=4 model.lora.target_modules=[]",
    ),
    (
        "model.lora.target_modules",
        "alone",
        "model.lora.rank=4 model.lora.target_modules=[all-linear,q_proj]",
    ),
    (
        "trainer.num_processes",
        "train on nothing",
        "trainer.num_processes=9 rollout.prompts_per_step=4 rollout.group_size=8 rl.mini_batches=4",
    ),
    ("trainer.num_processes", "split evenly", "trainer.num_nodes=2"),
    ("trainer.num_processes", "resources.train.gpus", "resources.train.gpus=2"),
    ("trainer.strategy", "trainer.num_processes=1", "trainer.strategy=fsdp2"),
    ("trainer.rank_timeout_s", "trainer.num_processes=1", "trainer.rank_timeout_s=5"),
    ("data.source", "reads digits only", "data.source=file data.path=x"),
    (
        "data.num_held_out",
        "held_out_path names",
        "PRETRAINED data.source=file data.path=x data.held_out_path=y data.num_held_out=3",
    ),
    (
        "data.num_held_out",
        "exceeds the test set",
        "PRETRAINED data.source=gsm8k data.num_held_out=1320",
    ),
    (
        "data.digits",
        "data.source=arithmetic only",
        "PRETRAINED data.source=file data.path=x data.digits=3",
    ),
    ("data.path", "both or neither", "data.path=x"),
    ("data.held_out_path", "data.source=file only", "data.held_out_path=x"),
    ("data.prompt_field", "data.source=file only", "data.prompt_field=x"),
    ("data.answer_field", "data.source=file only", "data.answer_field=x"),
    ("data.provider", "both or neither", "data.provider=x:y"),
    ("data.chat", "no chat template", "data.chat=true"),
    ("data.system_prompt", "data.chat=true only", "data.system_prompt=x"),
    ("rollout.max_tokens", "context of", "rollout.max_tokens=999"),
    ("rollout.vllm", "engine=vllm only", "rollout.vllm.tensor_parallel_size=2"),
    ("rollout.server", "engine=server only", "rollout.server.url=http://x:1"),
    ("rollout.server.url", "address of a running", "rollout.engine=server"),
    (
        "rollout.batch_size",
        "engine=server",
        "rollout.engine=server rollout.server.url=http://x:1 rollout.batch_size=8",
    ),
    *(
        (f"resources.{role}.gpu_type", "requests none", f"resources.{role}.gpu_type=nvidia-l4")
        for role in ("light", "rollout", "teacher", "train")
    ),
    ("rl.builder", "needs a teacher", "rl.builder=objectives.opd:build_objective"),
    ("rl.builder", "never reads the teacher", "teacher.source=embedded"),
    ("rl.grpo_surrogate", "surrogate clipped", "TEACHER rl.grpo_surrogate=cispo"),
    (
        "rl.importance_sampling_level",
        "advantage per token",
        "TEACHER rl.importance_sampling_level=sequence rl.lower_bound_ratio=0",
    ),
    ("rl.kl_coef", "train nothing", "TEACHER rl.kl_coef=0"),
    ("rl.jsd_beta", "divergence=jsd only", "TEACHER rl.distillation_mode=direct rl.jsd_beta=0.2"),
    ("teacher.source", "tokenizer of the embedded", "PRETRAINED TEACHER"),
    ("teacher.name_or_path", "both or neither", "teacher.name_or_path=x"),
    ("teacher.revision", "source=pretrained only", "teacher.revision=x"),
    ("teacher.dtype", "source=none", "teacher.dtype=bfloat16"),
    ("teacher.engine", "source=none", "teacher.engine=vllm"),
    (
        "teacher.engine",
        "over all tokens",
        "TEACHER teacher.engine=vllm rl.distillation_mode=direct",
    ),
    (
        "rl.temperature",
        "at temperature 1 only",
        "TEACHER teacher.engine=vllm rl.temperature=0.7 rollout.temperature=0.7",
    ),
    ("teacher.vllm", "engine=vllm only", "TEACHER teacher.vllm.compile=true"),
    ("teacher.by_source", "source=none", "teacher.by_source.gsm8k=x"),
    ("teacher.embedded", "source=embedded only", "teacher.embedded.num_layers=3"),
    ("teacher.embedded.num_heads", "multiple of twice", "TEACHER teacher.embedded.num_heads=3"),
    ("rollout.vllm", "engine=vllm only", "rollout.vllm.compile=true"),
    ("rollout.server", "engine=server only", "rollout.server.url=http://here"),
    ("rollout.server.url", "address of a running", "rollout.engine=server"),
    (
        "rollout.batch_size",
        "max-num-seqs",
        "rollout.engine=server rollout.server.url=http://here rollout.batch_size=8",
    ),
    ("rollout.shards", "exceeds rollout.prompts_per_step", "rollout.shards=9999"),
    (
        "rollout.routing_replay",
        "records the experts",
        "rollout.routing_replay=true rollout.engine=vllm",
    ),
    ("rollout.routing_replay", "no mixture", "rollout.routing_replay=true"),
    ("rollout.staleness", "no importance ratio", "LEGACY rollout.staleness=1"),
    ("rollout.staleness", "below rl.save_every", "rollout.staleness=2 rl.save_every=2"),
    ("rollout.staleness", "between segments", "rollout.staleness=40 rl.save_every=0"),
    ("rl.old_logprobs", "rollout.staleness above 0", "rl.old_logprobs=engine"),
    (
        "rl.engine_correction",
        "the same ones",
        "rollout.staleness=1 rl.old_logprobs=engine rl.engine_correction=mask",
    ),
    (
        "rl.engine_mismatch_bound",
        "bounds the difference",
        "rollout.staleness=1 rl.old_logprobs=engine rl.engine_mismatch_bound=0.2",
    ),
]
"""Field, a few words of the message, and overrides of `grpo_arithmetic` that break the rule."""

RISKY = [
    ("rl.mini_batches", "exactly 1", "rl.mini_batches=1"),
    ("rl.mini_batches", "off-policy", "LEGACY"),
    (
        "rl.epsilon_high",
        "scale of tokens",
        "rl.importance_sampling_level=sequence rl.lower_bound_ratio=0",
    ),
    (
        "model.dtype",
        "GSPO's clip range",
        "rl.importance_sampling_level=sequence rl.lower_bound_ratio=0 model.dtype=bfloat16",
    ),
    ("trainer.gradient_checkpointing", "saves little", "trainer.gradient_checkpointing=true"),
    ("rl.distillation_mode", "do not train", "TEACHER rl.distillation_mode=direct"),
]
"""The same for the warnings."""

CHANGED = {
    **UNREAD,
    "rl.distillation_mode": "direct",
    "rl.kl_coef": 0.5,
    "rl.kl_advantage_bound": 2.0,
    "rl.task_advantage_weight": 0.5,
    "rl.divergence": "forward_kl",
    "rl.jsd_beta": 0.2,
    "rl.teacher_topk": 4,
    "rl.engine_correction_low": 0.4,
    "rl.engine_correction_high": 3.0,
    "rl.engine_mismatch_bound": 0.2,
    "rl.old_logprobs": "engine",
    "rl.certified_deterministic_forward": True,
    "rl.pass_k": 2,
}
"""A value other than the default for every knob that a teacher makes, or leaves, unread."""

UNREAD_WITH = {
    "is read with a teacher": "",
    "minimises a divergence": "TEACHER rl.distillation_mode=direct",
    "turns rewards into advantages": "TEACHER",
}
"""By words of the message, the kind of run in which those knobs are refused."""

WORDS = {
    "LEGACY": "rl.grpo_surrogate=legacy_pg",
    "PRETRAINED": "model.source=pretrained model.name_or_path=x",
    "TEACHER": "teacher.source=embedded rl.builder=objectives.opd:build_objective",
}
"""What words in capitals stand for in the examples."""


def overrides(example: str) -> str:
    """Return an example with its words in capitals spelt out."""
    return " ".join(WORDS.get(word, word) for word in example.split())
