"""Figures and replays in, ranked recommendations out."""
