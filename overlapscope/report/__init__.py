"""Write results for people and other tools: text, HTML, Markdown, JSON, JUnit, OpenMetrics, Perfetto traces."""
