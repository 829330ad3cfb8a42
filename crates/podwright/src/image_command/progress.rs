//! The progress of a pull: bars on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use podwright_server::local::{LayerAmount, PullAmount};

/// Shows on stderr how far a pull is.
pub(super) enum ProgressView {
    /// One bar per layer.
    Bars(MultiProgress, Vec<ProgressBar>),
    /// When the last line was printed, or the pull began.
    Lines(Instant),
}

impl ProgressView {
    pub(super) fn for_stderr() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::Bars(MultiProgress::new(), vec![]),
            false => Self::Lines(Instant::now()),
        }
    }

    pub(super) fn show(&mut self, image: &str, layers: &[LayerAmount]) {
        match self {
            Self::Bars(all, bars) => {
                if bars.is_empty() {
                    bars.extend(layers.iter().map(|layer| all.add(layer_bar(layer))));
                }
                for (bar, layer) in bars.iter().zip(layers) {
                    bar.set_position(layer.received);
                    bar.set_message(layer_state(layer));
                }
            }
            Self::Lines(last) => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    eprintln!("{image}: {}", PullAmount::of_layers(layers));
                }
            }
        }
    }

    /// Removes the bars.
    pub(super) fn end(&mut self) {
        if let Self::Bars(bars, _) = self {
            let _ = bars.clear();
        }
    }
}

fn layer_bar(layer: &LayerAmount) -> ProgressBar {
    let template = "{prefix} {bar:30} {bytes:>10}/{total_bytes:<10} {msg}";
    let style = ProgressStyle::with_template(template).expect("a constant that a test parses");
    let prefix: String = layer.digest.trim_start_matches("sha256:").chars().take(12).collect();
    ProgressBar::new(layer.size).with_style(style.progress_chars("=> ")).with_prefix(prefix)
}

fn layer_state(layer: &LayerAmount) -> &'static str {
    match layer {
        LayerAmount { unpacked: true, .. } => "done",
        layer if layer.received >= layer.size => "unpacking",
        _ => "",
    }
}

/// Between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_a_bar_with_its_size() {
        let layer = LayerAmount { digest: "sha256:0123456789abcdef".into(), size: 100, received: 100, unpacked: false };
        assert_eq!(layer_bar(&layer).length(), Some(100));
        assert_eq!(layer_state(&layer), "unpacking");
        assert_eq!(layer_state(&LayerAmount { received: 5, ..layer }), "");
    }
}
