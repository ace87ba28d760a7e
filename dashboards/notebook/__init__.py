"""What a notebook shows of a run: its overview as HTML, and Plotly figures."""
