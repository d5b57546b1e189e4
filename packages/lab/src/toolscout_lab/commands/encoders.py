"""The command `export-encoder`: writes a sentence encoder as an ONNX folder."""

from __future__ import annotations

from pathlib import Path

import click

from toolscout.cli.output import progress


@click.command("export-encoder")
@click.argument("model")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="A new or empty folder.")
@click.option("--int8", is_flag=True, help="Quantise to 8-bit integers, for a quarter of the size and more speed.")
def export_encoder_command(model: str, out: Path, int8: bool) -> None:
    """Write MODEL as an ONNX folder, which runs without torch.

    MODEL is minilm, a folder, or a name on the Hugging Face hub. Use the result as the encoder onnx:FOLDER.
    """
    from toolscout_lab.encoders.onnx_export import export

    with progress(f"exporting {model}"):
        encoder = export(model, out, int8=int8)
    manifest = encoder.manifest
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    click.echo(f"{out}: {manifest.source}, {manifest.quantisation}, {manifest.dim} dimensions, {size:.1f} MB")
    click.echo(f"cosine with the source: {manifest.agreement} or more; fingerprint {encoder.fingerprint}")
    click.echo(f"use it with  --encoder onnx:{out}")
