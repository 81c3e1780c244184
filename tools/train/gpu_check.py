"""On the GPU machine: the two kernels against the plain forms, values and gradients, in bf16."""

import torch

import model


def main():
    torch.manual_seed(0)
    cu = torch.tensor([0, 128, 640, 960], dtype=torch.int32)
    T = 960
    q, k = torch.randn(T, 2, 128), torch.randn(T, 2, 128)
    v, g, beta = torch.randn(T, 4, 128), -torch.rand(T, 4), torch.rand(T, 4)
    aq, ak, av = torch.randn(T, 4, 128), torch.randn(T, 4, 128), torch.randn(T, 4, 128)
    for name, f, args in (
        ("delta", lambda *a: model.delta_rule(*a, cu.to(a[0].device)), (q, k, v, g, beta)),
        ("attention", lambda *a: model.attend(*a, cu.to(a[0].device), 512), (aq, ak, av)),
    ):
        results = []
        for device, kind in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
            leaves = [
                (a.clone() if a.dim() == 2 else a.bfloat16().to(kind)).to(device).requires_grad_() for a in args
            ]
            out = f(*leaves)
            (out.float() * torch.linspace(-1, 1, out.numel(), device=device).reshape(out.shape)).sum().backward()
            results.append([out.detach().float().cpu()] + [x.grad.float().cpu() for x in leaves])
        errors = [((a - b).norm() / a.norm()).item() for a, b in zip(*results)]
        print(name, [round(e, 4) for e in errors], flush=True)
        assert max(errors) < 0.03


if __name__ == "__main__":
    main()
