import subprocess
import sys
import textwrap


def test_writing_metrics_and_plots_imports_neither_paddle_nor_pyplot(tmp_path):
    code = f"""
        import sys
        from pathlib import Path
        import numpy as np
        from paddle_ernie.monitor import plots, report
        from paddle_ernie.monitor.records import MetricRecord
        from paddle_ernie.monitor.writer import Monitor
        folder = Path({str(tmp_path)!r})
        with Monitor(folder / "metrics.jsonl", folder) as monitor:
            monitor.write(MetricRecord(1, {{"loss/train": 1.0}}))
        curve = plots.Curve("x", np.arange(3), np.arange(3))
        plots.line_plot(folder / "x.png", [curve], title="", x_label="", y_label="")
        print([name for name in ("paddle", "matplotlib.pyplot") if name in sys.modules])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
    assert len(list(tmp_path.iterdir())) == 3
