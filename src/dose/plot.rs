//! Plots the measurements: the share of runs with a window above, overlap and staleness below.

use std::error::Error;

use anyhow::anyhow;
use plotters::{
    coord::{CoordTranslate, Shift},
    prelude::{
        BLACK, BLUE, ChartBuilder, ChartContext, Circle, Color, DrawingArea, DrawingBackend, ErrorBar, IntoDrawingArea,
        LineSeries, RED, SVGBackend, SeriesLabelPosition, WHITE,
    },
};

use super::series::{Measurement, Series};
use crate::statistics::quantile;

const SIZE: (u32, u32) = (720, 640);

/// Draws the SVG.
pub fn svg(series: &Series) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut draw = || -> Result<(), Box<dyn Error>> {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(SIZE.1 / 2);
        share(series, &above)?;
        lengths(series, &below)?;
        root.present()?;
        Ok(())
    };
    draw().map_err(|e| anyhow!("{e}"))?;
    Ok(text)
}

fn width(series: &Series) -> std::ops::Range<f64> {
    0.0..series.points.iter().map(|p| p.ratio).fold(0.5, f64::max) * 1.05
}

fn axis(series: &Series) -> String {
    format!("{} ÷ lease ({} ms)", series.of, series.lease_ms)
}

fn share<B: DrawingBackend>(series: &Series, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let mut chart = ChartBuilder::on(area)
        .caption(format!("runs with two holders, {} ({})", series.of, series.cluster), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(width(series), 0.0..1.05)?;
    chart.configure_mesh().x_desc(axis(series)).y_desc("share, 95 % interval").draw()?;
    let counted = || series.points.iter().filter(|p| p.runs > 0);
    chart.draw_series(LineSeries::new(counted().map(|p| (p.ratio, p.share().0)), BLUE))?;
    chart.draw_series(counted().map(|p| {
        let (middle, from, to) = p.share();
        ErrorBar::new_vertical(p.ratio, from, middle, to, BLUE.filled(), 8)
    }))?;
    Ok(())
}

fn lengths<B: DrawingBackend>(series: &Series, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let of = |values: fn(&Measurement) -> &[f64], share: f64| -> Vec<(f64, f64)> {
        series.points.iter().filter_map(|p| Some((p.ratio, quantile(values(p), share)?))).collect()
    };
    let overlaps: fn(&Measurement) -> &[f64] = |p| &p.overlap_ms;
    let staleness: fn(&Measurement) -> &[f64] = |p| &p.staleness_ms;
    let highest =
        [overlaps, staleness].into_iter().flat_map(|values| of(values, 0.9)).map(|(_, y)| y).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(width(series), 0.0..highest * 1.05)?;
    chart.configure_mesh().x_desc(axis(series)).y_desc("ms: median, bar to 90 %").draw()?;
    for (name, values, color) in [("overlap", overlaps, BLUE), ("staleness", staleness, RED)] {
        let middle = of(values, 0.5);
        let bars: Vec<_> = middle.iter().zip(of(values, 0.9)).map(|((x, y), (_, high))| (*x, *y, high)).collect();
        chart
            .draw_series(LineSeries::new(middle, color))?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
        chart.draw_series(
            bars.into_iter().map(|(x, y, high)| ErrorBar::new_vertical(x, y, y, high, color.filled(), 6)),
        )?;
    }
    legend(&mut chart)
}

/// Draws a box with the names of the chart's lines.
///
/// # Errors
/// Drawing failed.
pub fn legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}
