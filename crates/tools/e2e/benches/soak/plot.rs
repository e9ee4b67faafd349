//! Draws the samples as SVG, one panel for each quantity.

use std::fmt::Write as _;

use super::{
    samples::Series,
    verdict::{Growth, Verdict},
};

const COLUMNS: usize = 3;
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;
/// The space around the curve in a panel, for text.
const MARGIN: f64 = 24.0;

pub(crate) fn draw(all: &[Series], verdicts: &[Verdict]) -> String {
    let rows = all.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (n, (series, verdict)) in all.iter().zip(verdicts).enumerate() {
        let (x, y) = ((n % COLUMNS) as f64 * WIDTH, (n / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x},{y})\">{}</g>", panel(series, verdict));
    }
    svg + "</svg>\n"
}

fn panel(series: &Series, verdict: &Verdict) -> String {
    let end = series.points.last().map_or(1.0, |point| point.at.as_secs_f64().max(1.0));
    let most = series.points.iter().map(|point| point.value).fold(1.0, f64::max);
    let place = |at: f64, value: f64| {
        let x = MARGIN + at / end * (WIDTH - 2.0 * MARGIN);
        (x, HEIGHT - MARGIN - value / most * (HEIGHT - 2.0 * MARGIN))
    };
    let mut path = String::new();
    for point in &series.points {
        let (x, y) = place(point.at.as_secs_f64(), point.value);
        let _ = write!(path, "{x:.1},{y:.1} ");
    }
    let color = if verdict.growth == Growth::Flat { "#06c" } else { "#c00" };
    let ((left, bottom), (right, top)) = (place(0.0, 0.0), place(end, most));
    format!(
        "<polyline points=\"{left},{top} {left},{bottom} {right},{bottom}\" fill=\"none\" stroke=\"#999\"/>\
         <polyline points=\"{path}\" fill=\"none\" stroke=\"{color}\"/>\
         <text x=\"{left}\" y=\"16\">{}: {}, {:+.1} per hour</text>\
         <text x=\"{right}\" y=\"{top}\" text-anchor=\"end\" fill=\"#666\">{most:.0}</text>\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\" fill=\"#666\">{:.0} min</text>",
        series.name,
        verdict.growth.name(),
        verdict.slope,
        bottom + 14.0,
        end / 60.0
    )
}
