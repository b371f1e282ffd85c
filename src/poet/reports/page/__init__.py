"""One self-contained HTML page about a plan, the same as a Plotly figure, and as a picture."""
