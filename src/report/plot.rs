//! Plots as SVG: lines and bars. Hovering over a point or a bar shows its values, by the browser's own tooltip.

use std::fmt::Write as _;

use warmpath_core::count::real_len;

use super::axis::{Axis, Form};
use super::escaped;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Colours before they begin again, dashed.
const COLOURS: usize = 8;
/// Points of a line that have a dot; of longer lines about as many show their values, without a dot.
const DOTS_MAX: usize = 48;
/// Labels below bars.
const LABELS_MAX: usize = 16;

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
    scattered: bool,
}

impl Series {
    /// A line through `points`, in their order; what is not finite is left out.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let finite = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        Self { name: name.into(), points: finite.collect(), dashed: false, scattered: false }
    }

    /// Dashed, for a bound that the others are held against.
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    /// Dots without a line through them.
    pub fn scattered(self) -> Self {
        Self { scattered: true, ..self }
    }

    /// What a legend shows of it.
    fn mark(&self, at: usize) -> String {
        if self.scattered {
            format!("<g class=\"{}\"><circle class=\"dot\" cx=\"11\" cy=\"5\" r=\"4\"/></g>", colour(at))
        } else {
            format!("<path class=\"curve {}\" d=\"M1 5H21\"/>", line_class(at, self.dashed))
        }
    }
}

/// The bars of one colour, one for each label.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    name: String,
    values: Vec<f64>,
}

impl Bars {
    /// Bars of these heights; what is not finite has none.
    pub fn new(name: impl Into<String>, values: Vec<f64>) -> Self {
        let finite = values.into_iter().map(|value| if value.is_finite() { value } else { 0.0 });
        Self { name: name.into(), values: finite.collect() }
    }
}

/// A plot with its title, axes and legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    title: String,
    x: String,
    y: String,
    y_form: Form,
    log_x: bool,
    tight_y: bool,
    body: Body,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    Lines(Vec<Series>),
    Bars { labels: Vec<String>, groups: Vec<Bars> },
}

impl Plot {
    /// Lines. The y axis begins at 0, the x axis with the first point.
    pub fn lines(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>, series: &[Series]) -> Self {
        Self::new(title.into(), x.into(), y.into(), Body::Lines(series.to_vec()))
    }

    /// Bars, those of one label side by side.
    pub fn bars(
        title: impl Into<String>,
        x: impl Into<String>,
        y: impl Into<String>,
        labels: &[String],
        groups: &[Bars],
    ) -> Self {
        let body = Body::Bars { labels: labels.to_vec(), groups: groups.to_vec() };
        Self::new(title.into(), x.into(), y.into(), body)
    }

    fn new(title: String, x: String, y: String, body: Body) -> Self {
        Self { title, x, y, y_form: Form::Number, log_x: false, tight_y: false, body }
    }

    /// With a logarithmic x axis; lines only.
    pub fn log_x(self) -> Self {
        Self { log_x: true, ..self }
    }

    /// With a y axis that begins a little below the lowest point instead of at 0; lines only.
    pub fn tight_y(self) -> Self {
        Self { tight_y: true, ..self }
    }

    /// With shares of one on the y axis, written as percent.
    pub fn share_y(self) -> Self {
        Self { y_form: Form::Share, ..self }
    }

    /// A figure of HTML with the plot as SVG; its colours and type come from the page's style. O(points).
    pub fn render(&self) -> String {
        let title = escaped(&self.title);
        let mut html = format!("<figure><figcaption>{title}</figcaption>\n");
        html += &self.legend();
        let _ = writeln!(html, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
        match &self.body {
            Body::Lines(series) => self.render_lines(series, &mut html),
            Body::Bars { labels, groups } => self.render_bars(labels, groups, &mut html),
        }
        html + "</svg></figure>\n"
    }

    /// Nothing for a single name: the title says what it is.
    fn legend(&self) -> String {
        let names: Vec<(&str, String)> = match &self.body {
            Body::Lines(series) => series.iter().enumerate().map(|(at, s)| (s.name.as_str(), s.mark(at))).collect(),
            Body::Bars { groups, .. } => {
                let mark =
                    |at| format!("<rect class=\"bar {}\" x=\"5\" width=\"10\" height=\"10\" rx=\"2\"/>", colour(at));
                groups.iter().enumerate().map(|(at, g)| (g.name.as_str(), mark(at))).collect()
            }
        };
        if names.len() < 2 {
            return String::new();
        }
        let mut html = "<ul class=\"legend\">".to_owned();
        for (name, mark) in names {
            let _ = write!(html, "<li><svg viewBox=\"0 0 22 10\">{mark}</svg>{}</li>", escaped(name));
        }
        html + "</ul>\n"
    }

    fn render_lines(&self, series: &[Series], html: &mut String) {
        let xs = || series.iter().flat_map(|s| s.points.iter().map(|point| point.0));
        let x = match self.log_x {
            true => Axis::logarithmic(xs(), Form::Number),
            false if series.iter().all(|s| s.scattered) => Axis::around(xs(), Form::Number, 8.0),
            false => Axis::tight(xs(), Form::Number, 8.0),
        };
        let ys = || series.iter().flat_map(|s| s.points.iter().map(|point| point.1));
        let y = if self.tight_y { Axis::around(ys(), self.y_form, 5.0) } else { Axis::linear(ys(), self.y_form, 5.0) };
        self.render_y(&y, html);
        for tick in &x.ticks {
            self.render_label(across(x.place(*tick)), &x.tick(*tick), html);
        }
        for (at, line) in series.iter().enumerate().filter(|(_, line)| !line.scattered) {
            let class = line_class(at, line.dashed);
            let places = line.points.iter().map(|(vx, vy)| (across(x.place(*vx)), up(y.place(*vy))));
            let mut path = String::new();
            for (at, (px, py)) in places.enumerate() {
                let _ = write!(path, "{}{px:.1} {py:.1}", if at == 0 { 'M' } else { 'L' });
            }
            let _ = writeln!(html, "<path class=\"curve {class}\" d=\"{path}\"/>");
        }
        // Above all lines, so that none hides another's values.
        for (at, line) in series.iter().enumerate() {
            let step = if line.scattered { 1 } else { line.points.len().div_ceil(DOTS_MAX).max(1) };
            for (vx, vy) in line.points.iter().step_by(step) {
                let (px, py) = (across(x.place(*vx)), up(y.place(*vy)));
                let dot = if step == 1 && !line.dashed {
                    let radius = if line.scattered { 6.0 } else { 3.5 };
                    format!("<circle class=\"dot\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"{radius}\"/>")
                } else {
                    String::new()
                };
                let text = escaped(&format!("{}: {} at {}", line.name, y.exact(*vy), x.exact(*vx)));
                let _ = writeln!(
                    html,
                    "<g class=\"point {}\">{dot}<circle class=\"hit\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"9\">\
                     <title>{text}</title></circle></g>",
                    colour(at)
                );
            }
        }
    }

    fn render_bars(&self, labels: &[String], groups: &[Bars], html: &mut String) {
        let y = Axis::linear(groups.iter().flat_map(|group| group.values.iter().copied()), self.y_form, 5.0);
        self.render_y(&y, html);
        let step = 1.0 / real_len(labels.len().max(1));
        let label_step = labels.len().div_ceil(LABELS_MAX).max(1);
        let room = (WIDTH - LEFT - RIGHT) * step;
        let gap = (room * 0.2).clamp(0.5, 24.0);
        let width = (room - gap) / real_len(groups.len().max(1));
        for (at, label) in labels.iter().enumerate() {
            let left = across(step * real_len(at));
            if at.is_multiple_of(label_step) {
                self.render_label(left + room / 2.0, label, html);
            }
            for (place, group) in groups.iter().enumerate() {
                let value = group.values.get(at).copied().unwrap_or(0.0);
                let (x, top, base) = (left + gap / 2.0 + width * real_len(place), up(y.place(value)), up(y.place(0.0)));
                let text = escaped(&format!("{}: {} at {label}", group.name, y.exact(value)));
                let _ = writeln!(
                    html,
                    "<rect class=\"bar {}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\">\
                     <title>{text}</title></rect>",
                    colour(place),
                    top.min(base),
                    (width - 1.0).max(0.5),
                    (base - top).abs(),
                );
            }
        }
    }

    /// The y axis with its grid, and both axes' names.
    fn render_y(&self, y: &Axis, html: &mut String) {
        let (right, base) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in &y.ticks {
            let at = up(y.place(*tick));
            let _ = writeln!(html, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
            let (x, text) = (LEFT - 8.0, escaped(&y.tick(*tick)));
            let _ = writeln!(html, "<text x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", at + 4.0);
        }
        let _ = writeln!(html, "<path class=\"axis\" d=\"M{LEFT} {base}H{right}\"/>");
        let middle = (LEFT + right) / 2.0;
        let _ = writeln!(
            html,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 6.0,
            escaped(&self.x)
        );
        let middle = (TOP + base) / 2.0;
        let _ = writeln!(
            html,
            "<text transform=\"translate(13 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.y)
        );
    }

    fn render_label(&self, x: f64, text: &str, html: &mut String) {
        let y = HEIGHT - BOTTOM + 19.0;
        let _ = writeln!(html, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", escaped(text));
    }
}

/// From a share of the x axis to a place.
fn across(share: f64) -> f64 {
    LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
}

/// From a share of the y axis to a place.
fn up(share: f64) -> f64 {
    HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

fn colour(at: usize) -> String {
    format!("c{}", at % COLOURS)
}

fn line_class(at: usize, dashed: bool) -> String {
    let dash = if dashed || at >= COLOURS { " dash" } else { "" };
    colour(at) + dash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_points_from_corner_to_corner() {
        let svg = Plot::lines("T", "x", "y", &[Series::new("a", vec![(0.0, 0.0), (10.0, 5.0)])]).render();
        assert!(svg.contains("<path class=\"curve c0\" d=\"M58.0 284.0L842.0 14.0\"/>"), "{svg}");
        assert!(svg.contains("<title>a: 5 at 10</title>"), "{svg}");
        assert!(!svg.contains("legend"), "one name needs none");
    }

    #[test]
    fn scattered_points_are_dots_without_a_line_and_may_leave_out_the_zero() {
        let points = (0..60).map(|at| (f64::from(at), 100.0 + f64::from(at))).collect();
        let series = [Series::new("a", points).scattered(), Series::new("b", vec![(100.0, 200.0)]).scattered()];
        let svg = Plot::lines("T", "x", "y", &series).tight_y().render();
        // The 61 points, and a mark for each name in the legend.
        assert_eq!((svg.matches("class=\"dot\"").count(), svg.matches("curve").count()), (63, 0));
        assert!(svg.contains("cx=\"58.0\" cy=\"284.0\"") && svg.contains("cx=\"842.0\" cy=\"14.0\""), "{svg}");
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let series = [Series::new("a", vec![(1.0, 1.0), (f64::INFINITY, 2.0), (2.0, f64::NAN)])];
        let svg = Plot::lines("T", "x", "y", &series).log_x().render();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let bars = [Bars::new("b", vec![f64::NAN, 2.0])];
        let svg = Plot::bars("T", "x", "y", &["1".to_owned(), "2".to_owned()], &bars).render();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn nothing_to_show_is_an_empty_plot() {
        for plot in [Plot::lines("T", "x", "y", &[]), Plot::bars("T", "x", "y", &[], &[])] {
            let svg = plot.render();
            assert!(svg.ends_with("</svg></figure>\n") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn bars_of_one_label_stand_side_by_side_on_the_axis() {
        let groups = [Bars::new("a", vec![1.0]), Bars::new("b<", vec![2.0])];
        let svg = Plot::bars("T", "x", "y", &["k".to_owned()], &groups).render();
        assert!(svg.contains("class=\"bar c0\" x=\"70.0\" y=\"149.0\" width=\"379.0\" height=\"135.0\""), "{svg}");
        assert!(svg.contains("class=\"bar c1\" x=\"450.0\" y=\"14.0\" width=\"379.0\" height=\"270.0\""), "{svg}");
        assert!(svg.contains("<title>b&lt;: 2 at k</title>"), "{svg}");
        assert!(svg.contains("legend"));
    }

    #[test]
    fn the_ninth_line_is_told_from_the_first_by_its_dashes() {
        let series: Vec<_> = (0..9).map(|at| Series::new(at.to_string(), vec![(0.0, 1.0), (1.0, 1.0)])).collect();
        let svg = Plot::lines("T", "x", "y", &series).share_y().render();
        assert!(svg.contains("<path class=\"curve c0\" d") && svg.contains("<path class=\"curve c0 dash\" d"), "{svg}");
    }
}
