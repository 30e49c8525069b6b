//! The tokens of two runs in the order of acquisition: those of a case, and those of its twin.

use std::error::Error;

use anyhow::anyhow;
use plotters::prelude::{
    BLUE, ChartBuilder, Circle, Color, DashedLineSeries, IntoDrawingArea, LineSeries, RED, SVGBackend, ShapeStyle,
    TriangleMarker, WHITE,
};

use crate::dose::legend;

const SIZE: (u32, u32) = (720, 320);

/// The tokens of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLine {
    /// The tokens that the plan asks for: `majority-max`.
    pub kind: String,
    /// The seed of the run.
    pub seed: u64,
    /// The tokens in the order of acquisition.
    pub tokens: Vec<u64>,
}

impl TokenLine {
    fn points(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        (1..).zip(self.tokens.iter().copied())
    }
}

/// Draws the SVG: the tokens of a case, and dashed those of its twin.
///
/// # Errors
/// Plotting failed.
pub fn svg(of_case: &TokenLine, of_twin: &TokenLine) -> anyhow::Result<String> {
    let mut text = String::new();
    draw(&mut text, of_case, of_twin).map_err(|e| anyhow!("{e}"))?;
    Ok(text)
}

fn draw(text: &mut String, of_case: &TokenLine, of_twin: &TokenLine) -> Result<(), Box<dyn Error>> {
    let both = || of_case.points().chain(of_twin.points());
    let (holds, highest) = both().fold((1, 1), |(x, y), point| (x.max(point.0), y.max(point.1)));
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0..holds + 1, 0..highest + 2)?;
    let whole = |value: &u64| value.to_string();
    chart
        .configure_mesh()
        .x_desc("hold, in the order of acquisition")
        .y_desc("token")
        .x_labels(usize::try_from(holds)? + 2)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()?;
    // The two lines differ in form as well as in colour.
    let name = |line: &TokenLine| format!("{}, seed {}", line.kind, line.seed);
    chart
        .draw_series(LineSeries::new(of_case.points(), RED))?
        .label(name(of_case))
        .legend(|(x, y)| Circle::new((x + 8, y), 4, RED.filled()));
    chart.draw_series(of_case.points().map(|point| Circle::new(point, 4, RED.filled())))?;
    chart
        .draw_series(DashedLineSeries::new(of_twin.points(), 6, 4, ShapeStyle::from(BLUE)))?
        .label(name(of_twin))
        .legend(|(x, y)| TriangleMarker::new((x + 8, y), 5, BLUE.filled()));
    chart.draw_series(of_twin.points().map(|point| TriangleMarker::new(point, 5, BLUE.filled())))?;
    legend(&mut chart)?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_of_both_runs_is_a_mark() {
        let line = |kind: &str, tokens: &[u64]| TokenLine { kind: kind.to_owned(), seed: 1, tokens: tokens.to_vec() };
        let svg = svg(&line("majority-max", &[4, 5, 2, 5]), &line("two-phase", &[4, 5, 6])).unwrap();
        // One mark more of each in the legend.
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polygon").count()), (5, 4), "{svg}");
        assert!(svg.contains("majority-max, seed 1") && svg.contains("two-phase, seed 1"), "{svg}");
    }
}
