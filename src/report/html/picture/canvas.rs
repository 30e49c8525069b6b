//! The shapes of the picture.

use std::fmt::Write;

use crate::timeline::WindowSpan;

const WIDTH: f64 = 980.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = WIDTH - 18.0;
/// The average width of a character.
const CHAR: f64 = 6.4;
/// Half the height of a bar.
const HALF: f64 = 11.0;

const STYLE: &str = include_str!("picture.css");

/// Text of a run, so that none of it is markup.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // XML has no other control characters.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHAR
}

/// Milliseconds to places from left to right.
pub struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    pub fn new(from: f64, to: f64) -> Scale {
        Scale { from, to }
    }

    fn x(&self, ms: f64) -> f64 {
        let share = (ms - self.from) / (self.to - self.from);
        (LEFT + share * (RIGHT - LEFT)).clamp(LEFT, RIGHT)
    }

    /// The distance of the marks on the axis: 1, 2 or 5 times a power of ten.
    fn step(&self) -> f64 {
        let rough = (self.to - self.from) / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough);
        factor.unwrap_or(10.0) * power
    }
}

/// The picture while it is drawn.
pub struct Canvas {
    scale: Scale,
    out: String,
    /// The ends of the labels at the resource.
    taken: Vec<(f64, f64)>,
}

impl Canvas {
    pub fn new(scale: Scale, height: f64, title: &str) -> Canvas {
        let mut out = format!(
            "<svg class=\"pic\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n",
            escaped(title)
        );
        out += "<defs><pattern id=\"pic-frozen\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
                patternTransform=\"rotate(45)\"><rect class=\"pf\" width=\"7\" height=\"7\"/>\
                <rect class=\"ps\" width=\"3\" height=\"7\"/></pattern>\
                <pattern id=\"pic-past\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
                patternTransform=\"rotate(-45)\"><rect class=\"bs\" width=\"2\" height=\"6\"/></pattern></defs>\n";
        let _ = writeln!(out, "<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>");
        Canvas { scale, out, taken: Vec::new() }
    }

    pub fn finish(mut self) -> String {
        self.out += "</svg>\n";
        self.out
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn rect(&mut self, class: &str, (from, to): (f64, f64), (y, height): (f64, f64)) -> (f64, f64) {
        let (from, to) = (self.scale.x(from), self.scale.x(to));
        let width = (to - from).max(3.0);
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"2\"/>"
        );
        (from, from + width)
    }

    /// A text beside `x`, on the side that has room.
    fn beside(&mut self, class: &str, x: f64, y: f64, text: &str) {
        match x + 6.0 + width(text) <= RIGHT {
            true => self.text(class, (x + 6.0, y), "start", text),
            false => self.text(class, (x - 6.0, y), "end", text),
        }
    }

    pub fn axis(&mut self, y: f64) {
        let (step, mut at) = (self.scale.step(), (self.scale.from / self.scale.step()).ceil() * self.scale.step());
        let digits = if step >= 1e3 { 0 } else { (3.0 - step.log10().floor()).max(1.0) as usize };
        let _ = writeln!(self.out, "<path class=\"axis\" d=\"M{LEFT} {y}H{RIGHT}\"/>");
        while at <= self.scale.to {
            let x = self.scale.x(at);
            let _ = writeln!(self.out, "<path class=\"grid\" d=\"M{x:.1} 34V{:.1}\"/>", y + 4.0);
            self.text("tick", (x, y + 18.0), "middle", &format!("{:.*} s", digits, at / 1e3 + 0.0));
            at += step;
        }
        self.text("tick", (RIGHT, y + 34.0), "end", "time since the start of the run's first process");
    }

    pub fn window(&mut self, window: &WindowSpan, (top, bottom): (f64, f64), label: &str) {
        let (from, to) = self.rect("window", (window.from_ms, window.to_ms), (top, bottom - top));
        let _ = writeln!(self.out, "<path class=\"edge\" d=\"M{from:.1} {top}V{bottom}M{to:.1} {top}V{bottom}\"/>");
        // A label that is wider than the picture is in its middle.
        let (middle, half) = ((from + to) / 2.0, (width(label) * 0.55).min((RIGHT - LEFT) / 2.0));
        let middle = middle.clamp(LEFT + half, RIGHT - half);
        self.text("wlabel", (middle, top - 9.0), "middle", label);
    }

    pub fn lane(&mut self, y: f64, name: &str) {
        let _ = writeln!(self.out, "<path class=\"lane\" d=\"M{LEFT} {y}H{RIGHT}\"/>");
        let short: String = name.chars().take(15).collect();
        let short = if short.len() < name.len() { short + "…" } else { short };
        self.text("name", (LEFT - 10.0, y + 4.0), "end", &short);
    }

    pub fn hold(&mut self, y: f64, span: (f64, f64), class: &str, label: &str) {
        let (from, to) = self.rect(&format!("hold {class}"), span, (y - HALF, 2.0 * HALF));
        match width(label) + 8.0 <= to - from {
            true => self.text("inside", (from + 7.0, y + 4.0), "start", label),
            false => self.text("label", (from, y - HALF - 5.0), if from > 700.0 { "end" } else { "start" }, label),
        }
    }

    pub fn believed(&mut self, y: f64, span: (f64, f64), label: &str) {
        let (from, to) = self.rect("past", span, (y - HALF, 2.0 * HALF));
        if width(label) + 16.0 <= to - from {
            let (x, width) = (from + 6.0, width(label) + 4.0);
            let _ = writeln!(
                self.out,
                "<rect class=\"plate\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\"/>",
                y - 8.0
            );
            self.text("label", (x + 3.0, y + 4.0), "start", label);
        }
    }

    pub fn other(&mut self, y: f64, span: (f64, f64)) {
        self.rect("other", span, (y - 4.0, 8.0));
    }

    pub fn note(&mut self, y: f64, text: &str) {
        self.text("tick", (LEFT - 10.0, y - 1.0), "end", text.split(',').next().unwrap_or_default());
    }

    pub fn band(&mut self, y: f64, span: (f64, f64), label: &str) {
        let (from, to) = self.rect("frozen", span, (y, 16.0));
        if width(label) + 12.0 <= to - from {
            let (middle, wide) = ((from + to) / 2.0, width(label) + 10.0);
            let x = middle - wide / 2.0;
            let _ = writeln!(
                self.out,
                "<rect class=\"plate\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"16\"/>"
            );
            self.text("label", (middle, y + 12.0), "middle", label);
        } else {
            self.beside("label", to, y + 12.0, label);
        }
    }

    pub fn cross(&mut self, y: f64, at: f64, label: &str) {
        let x = self.scale.x(at);
        let _ = writeln!(self.out, "<path class=\"cross\" d=\"M{:.1} {:.1}l12 12m0 -12l-12 12\"/>", x - 6.0, y - 6.0);
        self.beside("label", x + 6.0, y - HALF - 5.0, label);
    }

    /// A request from a holder's lane to the resource.
    pub fn request(&mut self, (from, to): (f64, f64), at: f64, class: &str, is_refused: bool) {
        let x = self.scale.x(at);
        let _ = writeln!(self.out, "<path class=\"sent {class}\" d=\"M{x:.1} {from:.1}V{to:.1}\"/>");
        match is_refused {
            true => {
                let (left, top) = (x - 5.0, to - 5.0);
                let _ = writeln!(self.out, "<circle class=\"refused\" cx=\"{x:.1}\" cy=\"{to:.1}\" r=\"9\"/>");
                let _ = writeln!(self.out, "<path class=\"cross\" d=\"M{left:.1} {top:.1}l10 10m0 -10l-10 10\"/>");
            }
            false => {
                let _ = writeln!(self.out, "<circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{to:.1}\" r=\"6\"/>");
            }
        }
    }

    /// The words below a request, if there is room for them.
    pub fn told(&mut self, y: f64, at: f64, first: &str, second: &str) {
        let (x, wide) = (self.scale.x(at), width(first).max(width(second)));
        let is_left = x + wide / 2.0 > RIGHT;
        let span = match is_left {
            true => (x - wide + 8.0, x + 8.0),
            false => ((x - wide / 2.0).max(LEFT), (x + wide / 2.0).max(LEFT + wide)),
        };
        if self.taken.iter().any(|taken| taken.0 < span.1 + 6.0 && span.0 < taken.1 + 6.0) {
            return;
        }
        self.taken.push(span);
        let (x, anchor) = if is_left { (span.1, "end") } else { ((span.0 + span.1) / 2.0, "middle") };
        self.text("strong", (x, y + 26.0), anchor, first);
        self.text("label", (x, y + 42.0), anchor, second);
    }
}
