"""What proves the graders: for every exercise, the wrong versions and the tests that notice each."""

from __future__ import annotations

from learnvllm.study import proof
from learnvllm.study.catalogue import load_exercises


def page() -> str:
    """From the proofs that `learnvllm dev check` keeps beside the exercises."""
    proofs = [found for exercise in load_exercises() if (found := proof.read_proof(exercise)) is not None]
    mutants = [mutant for one in proofs for mutant in one.mutants]
    killed = sum(bool(mutant.killed_by) for mutant in mutants)
    tests = sum(len(one.tests) for one in proofs)
    return (
        "# Kill matrix\n\n"
        "A grader is worth as much as the mistakes it notices. Beside every exercise lie wrong versions "
        "of its solution, each wrong in a way that looks right; `learnvllm dev check` runs the grader on each"
        " of them, on the reference (it must pass) and on the untouched starter (it must fail).\n\n"
        f"**{killed} of {len(mutants)}** wrong versions of {len(proofs)} exercises are noticed, "
        f"by {tests} tests.\n\n{proof.kill_matrix_markdown()}"
    )
