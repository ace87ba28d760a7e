"""The Dash application; installed as `overlapscope_dashboards`.

    serve -> app -> router -> pages/<name>.py -> views/<name>.py -> the analysis package
                       |            `-> parts/    tables, cards, bars: how anything looks
                       `-> site -> runs, opened   what there is below the folder that is served

Nothing is calculated here: views choose and order what the analysis, advice and gate packages give.
"""
