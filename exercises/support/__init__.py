"""What graders share: `from support.dayNN import ...`. A learner needs nothing of it."""
