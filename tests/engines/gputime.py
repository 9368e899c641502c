"""A plugin of vLLM: with GPUTIME="alpha,beta,gamma" an iteration takes at least alpha + beta * scheduled tokens + gamma * resident tokens
milliseconds, like one on a GPU whose kernels take that long. With GPUTIME_NOISE=S the duration is multiplied by a random factor whose
logarithm has the standard deviation S. Everything else is vLLM's own: HTTP, the scheduler, chunked prefill, the prefix cache, sampling."""

import functools
import os
import random
import time


def register():
    spec = os.environ.get("GPUTIME")
    if not spec:
        return
    alpha, beta, gamma = (float(number) for number in spec.split(","))
    noise = float(os.environ.get("GPUTIME_NOISE", "0"))
    random.seed(1)

    def slow_down(runner):
        if getattr(runner, "_has_gputime", False):
            return
        execute = runner.execute_model

        @functools.wraps(execute)
        def execute_model(self, scheduled, *arguments, **options):
            began = time.perf_counter()
            result = execute(self, scheduled, *arguments, **options)
            tokens = scheduled.total_num_scheduled_tokens
            if tokens:
                resident = tokens + sum(request.num_computed_tokens for request in scheduled.scheduled_new_reqs)
                resident += sum(scheduled.scheduled_cached_reqs.num_computed_tokens)
                least = (alpha + beta * tokens + gamma * resident) / 1000
                if noise:
                    least *= random.lognormvariate(-noise * noise / 2, noise)
                left = least - (time.perf_counter() - began)
                if left > 0:
                    time.sleep(left)
            return result

        runner.execute_model = execute_model
        runner._has_gputime = True

    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    slow_down(GPUModelRunner)
    try:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
    except ImportError:
        return
    slow_down(SecondRunner)
