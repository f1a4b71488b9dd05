"""Write numbers for people, so that different numbers never look alike."""


def float_text(number: float) -> str:
    """Format a setting such as a learning rate: `2e-05`, or all digits if it has more than six."""
    text = f"{number:g}"
    return text if float(text) == number else repr(number)
