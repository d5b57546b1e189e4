"""The command `export-encoder`."""

from __future__ import annotations

from pathlib import Path

import click

from toolscout.cli.output import progress


@click.command("export-encoder")
@click.argument("model")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="A new or empty folder.")
@click.option("--int8", is_flag=True, help="Quantise to 8-bit integers: a quarter of the size, and faster.")
def export_encoder_command(model: str, out: Path, int8: bool) -> None:
    """Write MODEL as an ONNX folder, which runs without torch.

    MODEL is minilm, a folder, or a name on the Hugging Face hub. The folder is then an encoder of the name onnx:FOLDER.
    """
    from toolscout.encoders.onnx_export import export

    with progress(f"exporting {model}"):
        made = export(model, out, int8=int8)
    manifest = made.manifest
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    click.echo(f"{out}: {manifest.source}, {manifest.quantisation}, {manifest.dim} dimensions, {size:.1f} MB")
    click.echo(f"cosine with the source: {manifest.agreement} or more; fingerprint {made.fingerprint}")
    click.echo(f"use it with  --encoder onnx:{out}")
