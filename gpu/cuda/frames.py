"""What errors hold on to."""


def forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames below an error hold: where there was too little memory, all that
    was made until then, which whoever comes next wants."""
    while error is not None:
        error.__traceback__ = None
        forget_frames(error.__cause__)
        error = error.__context__
