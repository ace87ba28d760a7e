"""The Dash application; installed as `overlapscope_dashboards`.

    server/serve -> server/app -> server/router -> pages/<name>.py -> views/<name>.py -> the analysis package
                                       |               `-> parts/    tables, cards, bars: how things look
                                       `-> runs/site -> runs/catalog, runs/open_run   the runs below the served folder

Nothing is calculated here: views select and order results of the analysis, advice and gate packages.
"""
