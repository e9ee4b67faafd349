//! Line plots as SVG.

use maud::{Markup, html};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;

/// Draws values over time. `points` are ages in seconds and values, the oldest first; `span` is the age at the left
/// edge; `show` formats a value.
pub(crate) fn plot(
    title: &str,
    points: &[(f64, f64)],
    span: f64,
    show: impl Fn(f64) -> String,
) -> Markup {
    let Some((_, latest)) = points.last() else {
        return html! { h2 { (title) } p { "No measurements yet; the first two take half a minute." } };
    };
    let top = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let scale = if top > 0.0 { HEIGHT / top } else { 0.0 };
    let coordinates: Vec<String> = points
        .iter()
        .map(|(age, value)| {
            format!("{:.1},{:.1}", WIDTH * (1.0 - age / span), HEIGHT - value * scale)
        })
        .collect();
    let summary = format!("{}, at most {}", show(*latest), show(top));
    html! {
        h2 { (title) ": " (summary) }
        svg viewBox=(format!("0 -5 {WIDTH} {}", HEIGHT + 10.0)) preserveAspectRatio="none" role="img"
            aria-label=(format!("{title} over the last hour: {summary}")) {
            polyline points=(coordinates.join(" ")) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_largest_value_at_the_top_and_now_at_the_right() {
        let shown =
            plot("Load", &[(60.0, 1.0), (30.0, 4.0), (0.0, 2.0)], 60.0, |v| format!("{v} kg"));
        let text = shown.into_string();
        assert!(text.contains("points=\"0.0,75.0 300.0,0.0 600.0,50.0\""), "{text}");
        assert!(text.contains("Load: 2 kg, at most 4 kg"), "{text}");
    }

    #[test]
    fn draws_zeros_and_says_that_nothing_is_measured() {
        let shown = plot("Load", &[(5.0, 0.0), (0.0, 0.0)], 60.0, |v| v.to_string()).into_string();
        assert!(!shown.contains("NaN") && !shown.contains("inf"), "{shown}");
        assert!(
            plot("Load", &[], 60.0, |v| v.to_string()).into_string().contains("No measurements")
        );
    }
}
