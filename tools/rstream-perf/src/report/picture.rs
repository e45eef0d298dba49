//! Curves over message sizes, all candidates in one picture: what a test is about, both axes logarithmic.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::candidate::Candidate;
use crate::driver::Run;
use crate::job::{Metric, Test};
use crate::size;
use crate::statistics::Summary;

const SIZE: (u32, u32) = (960, 540);
/// The names stand to the right of the curves, where they cover none.
const NAMES_WIDTH: u32 = 190;
const FONT: &str = "sans-serif";
/// Told apart by those who see colours differently as well (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(110, 110, 110),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What one candidate gave at each size.
struct Curve {
    candidate: Candidate,
    points: Vec<(usize, Summary)>,
}

/// A picture of each test that was made with several sizes.
pub(super) fn all(run: &Run<'_>) -> Result<Vec<(Test, String)>> {
    let mut pictures = Vec::new();
    for &test in &run.options.tests {
        let (metric, curves) = curves(run, test);
        let several = curves.iter().any(|curve| curve.points.len() > 1);
        if let (Some(metric), true) = (metric, several) {
            let mut text = String::new();
            draw(
                &SVGBackend::with_string(&mut text, SIZE).into_drawing_area(),
                &title(run, test),
                metric,
                &curves,
            )
            .map_err(|error| anyhow!("drawing {test}: {error}"))?;
            pictures.push((test, text));
        }
    }
    Ok(pictures)
}

fn curves(run: &Run<'_>, test: Test) -> (Option<Metric>, Vec<Curve>) {
    let mut metric = None;
    let mut curves = Vec::new();
    for &candidate in &run.options.candidates {
        let mut points = Vec::new();
        for row in run.rows.iter().filter(|row| row.test == test && row.candidate == candidate) {
            if let Some((of, summary)) = row.principal() {
                metric = Some(of);
                points.push((row.size, summary));
            }
        }
        points.sort_by_key(|(size, _)| *size);
        if !points.is_empty() {
            curves.push(Curve { candidate, points });
        }
    }
    (metric, curves)
}

fn title(run: &Run<'_>, test: Test) -> String {
    let what = match test {
        Test::Bandwidth => "One way",
        Test::Bidirectional => "Both ways at once",
        Test::Pingpong => "There and back",
        Test::Rate => "Messages one way",
        Test::Write => "Into remote memory",
        Test::Read => "Out of remote memory",
        Test::Register => "Registering memory",
        Test::Connections => "Many connections",
        Test::Spread => "Messages one way over many connections",
        Test::Verify => "Compared",
    };
    let how = if run.options.sleeps { "sleep" } else { "poll" };
    format!("{what}, both sides {how}: median, least and most of each")
}

fn draw(
    area: &Area<'_>,
    title: &str,
    metric: Metric,
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let area = area.titled(title, (FONT, 18))?;
    let (plot, names) = area.split_horizontally(SIZE.0 - NAMES_WIDTH);
    let sizes = curves.iter().flat_map(|curve| curve.points.iter().map(|(size, _)| *size as f64));
    let values = curves.iter().flat_map(|curve| {
        curve
            .points
            .iter()
            .flat_map(|(_, summary)| [metric.scaled(summary.least), metric.scaled(summary.most)])
    });
    let (from, to) = range(sizes, 2.0);
    let (least, most) = range(values, 10.0);
    let mut chart = ChartBuilder::on(&plot)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(50)
        .y_label_area_size(72)
        .build_cartesian_2d((from..to).log_scale().base(2.0), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(format!("{}, {}", metric.title(), metric.unit()))
        .x_labels(24)
        .x_max_light_lines(1)
        .x_label_formatter(&|size| size::text(*size as usize))
        .y_label_formatter(&|value| number(*value))
        .bold_line_style(RGBColor(200, 200, 200))
        .light_line_style(RGBColor(238, 238, 238))
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13))
        .draw()?;
    for (index, curve) in curves.iter().enumerate() {
        let style = COLOURS[index % COLOURS.len()].stroke_width(2);
        let at = |(size, summary): &(usize, Summary)| (*size as f64, metric.scaled(summary.median));
        chart.draw_series(LineSeries::new(curve.points.iter().map(at), style))?;
        chart.draw_series(curve.points.iter().map(|(size, summary)| {
            let ends = [summary.least, summary.most].map(|value| (*size as f64, metric.scaled(value)));
            PathElement::new(ends.to_vec(), style)
        }))?;
        chart.draw_series(curve.points.iter().map(|point| EmptyElement::at(at(point)) + mark(index)))?;
    }
    draw_names(&names, curves)?;
    area.present()?;
    Ok(())
}

/// Each candidate has a mark of its own besides its colour.
fn mark(index: usize) -> Polygon<(i32, i32)> {
    let colour = COLOURS[index % COLOURS.len()];
    let corners: &[(i32, i32)] = match index % 4 {
        0 => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
        1 => &[(0, -6), (5, 4), (-5, 4)],
        2 => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
        _ => &[(0, 6), (5, -4), (-5, -4)],
    };
    Polygon::new(corners.to_vec(), colour.filled())
}

fn draw_names(area: &Area<'_>, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let style = (FONT, 15).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    for (index, curve) in curves.iter().enumerate() {
        let y = 30 + 24 * index as i32;
        let colour = COLOURS[index % COLOURS.len()];
        area.draw(&PathElement::new(vec![(0, y), (32, y)], colour.stroke_width(2)))?;
        area.draw(&(EmptyElement::at((16, y)) + mark(index)))?;
        area.draw(&Text::new(curve.candidate.to_string(), (42, y), style.clone()))?;
    }
    Ok(())
}

/// From the power of the base below the least to the one above the greatest.
fn range(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value.max(f64::MIN_POSITIVE)), most.max(value))
    });
    let power = |value: f64| base.powf(value);
    (power(least.log(base).floor()), power(most.log(base).ceil()))
}

/// A power of ten without an exponent.
fn number(value: f64) -> String {
    if value < 1.0 { format!("{value}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::with_example;

    #[test]
    fn a_picture_has_every_candidate_and_its_points() {
        with_example(|run| {
            let pictures = all(run).unwrap();
            let [(Test::Bandwidth, text)] = &pictures[..] else { panic!("one test had several sizes") };
            assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
            for name in ["rstream:512K", "tcp", "MB/s", "bytes of a message"] {
                assert!(text.contains(name), "{name}");
            }
            // A mark for each of three points and for each of two names.
            assert_eq!(text.matches("<polygon ").count(), 5);
        });
    }

    #[test]
    fn ranges_hold_all_values() {
        assert_eq!(range([3.0, 40.0].into_iter(), 10.0), (1.0, 100.0));
        assert_eq!(range([64.0, 1024.0].into_iter(), 2.0), (64.0, 1024.0));
    }
}
