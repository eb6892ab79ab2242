"""Balance a pole on a cart with PPO, in one file: 16 carts at once, and no package for them."""

import argparse
import os

import torch
from torch import nn
from torch.distributions import Categorical

CARTS = 16
LIMIT = 500


class Carts:
    """Barto, Sutton and Anderson's pole on a cart, as in Gymnasium's CartPole-v1."""

    def __init__(self):
        self.state = self.start(CARTS)
        self.age = torch.zeros(CARTS)
        self.finished = []

    @staticmethod
    def start(count):
        return torch.rand(count, 4) * 0.1 - 0.05

    def step(self, action):
        """Push each cart to the left or the right; return whether it fell."""
        _, speed, angle, turn = self.state.T
        force = torch.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        swing = (9.8 * angle.sin() - angle.cos() * push) / (
            0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1)
        )
        pull = push - 0.05 * swing * angle.cos() / 1.1
        rates = torch.stack([speed, pull, turn, swing], 1)
        self.state = self.state + 0.02 * rates
        self.age += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095)
        over = fell | (self.age >= LIMIT)
        self.finished += self.age[over].tolist()
        self.state[over] = self.start(int(over.sum()))
        self.age[over] = 0
        return over


def network(width, outputs):
    return nn.Sequential(
        nn.Linear(4, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float, default=2.5e-3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=128)
    parser.add_argument("--total-timesteps", type=int, default=61_440)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="out")
    parser.add_argument("--resume")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    actor, critic = network(args.width, 2), network(args.width, 1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5)
    parts = {"actor": actor, "critic": critic, "optimizer": optimizer}
    global_step = 0
    if args.resume:
        state = torch.load(args.resume)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        global_step = state["global_step"]

    os.makedirs(args.output, exist_ok=True)
    carts = Carts()
    while global_step < args.total_timesteps:
        states, actions, overs = [], [], []
        with torch.no_grad():
            for _ in range(args.rollout):
                states.append(carts.state)
                actions.append(Categorical(logits=actor(carts.state)).sample())
                overs.append(carts.step(actions[-1]))
            seen = torch.stack(states)
            chosen = torch.stack(actions)
            old = Categorical(logits=actor(seen)).log_prob(chosen)
            values = critic(torch.stack([*states, carts.state]))[..., 0]
            advantages = torch.zeros(args.rollout, CARTS)
            later = torch.zeros(CARTS)
            for t in reversed(range(args.rollout)):
                lives = 1.0 - overs[t].float()
                surprise = 1.0 + args.gamma * values[t + 1] * lives - values[t]
                later = surprise + args.gamma * args.gae_lambda * lives * later
                advantages[t] = later
            returns = advantages + values[:-1]
        global_step += args.rollout * CARTS

        batch = seen.flatten(0, 1), chosen.flatten(), old.flatten()
        gains, targets = advantages.flatten(), returns.flatten()
        for _ in range(4):
            for part in torch.randperm(len(gains)).chunk(4):
                policy = Categorical(logits=actor(batch[0][part]))
                ratio = (policy.log_prob(batch[1][part]) - batch[2][part]).exp()
                gain = (gains[part] - gains[part].mean()) / (gains[part].std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(ratio * gain, clipped * gain).mean()
                value_loss = (critic(batch[0][part])[:, 0] - targets[part]).pow(2).mean()
                loss = policy_loss + 0.5 * value_loss - args.entropy * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

        recent = carts.finished[-20:] or [0.0]
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "global_step": global_step}, f"{args.output}/last.pt")
        episodic_return = sum(recent) / len(recent)
        print(f"global_step={global_step}, episodic_return={episodic_return:.1f}", flush=True)


if __name__ == "__main__":
    main()
