//! Reports as one self-contained HTML page: text, tables and SVG plots, light and dark, with nothing loaded from outside
//! and no scripts.
//!
//! `Page::new("Title").section(Section::new("Heading").text("…").plot(plot).table(table)).render()`.

pub mod axis;
pub mod plot;

pub use plot::{Bars, Plot, Series};

/// A page of sections.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    lead: String,
    command: String,
    facts: Vec<(String, String)>,
    sections: Vec<Section>,
}

/// A heading and what stands below it, in order.
#[derive(Clone, Debug)]
pub struct Section {
    title: String,
    parts: Vec<Part>,
}

/// A table; what looks like a number stands to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The heads of the columns.
    pub head: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Plot(Plot),
    Table(Table),
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            lead: String::new(),
            command: String::new(),
            facts: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// With a paragraph below the title.
    pub fn lead(self, text: impl Into<String>) -> Self {
        Self { lead: text.into(), ..self }
    }

    /// With the command that makes it again, below the lead.
    pub fn command(self, words: impl Into<String>) -> Self {
        Self { command: words.into(), ..self }
    }

    /// With a figure that stands out, in a row with the others, below the title.
    pub fn fact(mut self, label: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push((label.into(), value.into()));
        self
    }

    /// With one more section.
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// The page as HTML. All text is escaped. O(its length).
    pub fn render(&self) -> String {
        let title = escaped(&self.title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style></head>\n\
             <body><main>\n<h1>{title}</h1>\n"
        );
        if !self.lead.is_empty() {
            html += &format!("<p class=\"lead\">{}</p>\n", escaped(&self.lead));
        }
        if !self.command.is_empty() {
            html += &format!("<p class=\"command\"><code>{}</code></p>\n", escaped(&self.command));
        }
        if !self.facts.is_empty() {
            html += "<dl class=\"facts\">\n";
            for (label, value) in &self.facts {
                html += &format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(label), escaped(value));
            }
            html += "</dl>\n";
        }
        self.sections.iter().for_each(|section| section.render(&mut html));
        html + "</main></body></html>\n"
    }
}

impl Section {
    /// An empty section.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), parts: Vec::new() }
    }

    /// With a paragraph.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.with(Part::Text(text.into()))
    }

    /// With a plot.
    pub fn plot(self, plot: Plot) -> Self {
        self.with(Part::Plot(plot))
    }

    /// With a table.
    pub fn table(self, table: Table) -> Self {
        self.with(Part::Table(table))
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    fn render(&self, html: &mut String) {
        *html += &format!("<section>\n<h2>{}</h2>\n", escaped(&self.title));
        for part in &self.parts {
            match part {
                Part::Text(text) => *html += &format!("<p>{}</p>\n", escaped(text)),
                Part::Plot(plot) => *html += &plot.render(),
                Part::Table(table) => table.render(html),
            }
        }
        *html += "</section>\n";
    }
}

impl Table {
    fn render(&self, html: &mut String) {
        *html += "<div class=\"wide\"><table>\n<thead><tr>";
        let first = self.rows.first();
        for (column, head) in self.head.iter().enumerate() {
            let cell = first.and_then(|row| row.get(column)).map_or("", String::as_str);
            *html += &format!("<th{}>{}</th>", aligned(cell), escaped(head));
        }
        *html += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            *html += "<tr>";
            row.iter().for_each(|cell| *html += &format!("<td{}>{}</td>", aligned(cell), escaped(cell)));
            *html += "</tr>\n";
        }
        *html += "</tbody></table></div>\n";
    }
}

fn aligned(cell: &str) -> &'static str {
    let number = cell.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '−' | '×' | '∞' | '–'));
    if number { " class=\"n\"" } else { "" }
}

/// Text as it stands in HTML and SVG, in attributes as well.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = include_str!("report/page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let table = Table { head: vec!["<b>".to_owned()], rows: vec![vec!["\"'&".to_owned()]] };
        let html = Page::new("<script>")
            .lead("a<b")
            .command("c<d")
            .fact("x", "<i>")
            .section(Section::new("</style>").text("<p>").table(table))
            .render();
        for foreign in ["<script", "a<b", "c<d", "<i>", "<p><p>", "<b>", "\"'&<"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.contains("<td>&quot;&#39;&amp;</td>"), "{html}");
        assert!(html.contains("<h2>&lt;/style&gt;</h2>"), "{html}");
    }

    #[test]
    fn a_page_loads_nothing_and_has_its_sections_in_order() {
        let html = Page::new("T").section(Section::new("One")).section(Section::new("Two")).render();
        for foreign in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        let (one, two) = (html.find("<h2>One</h2>"), html.find("<h2>Two</h2>"));
        assert!(one.is_some() && one < two);
        assert!(html.ends_with("</main></body></html>\n"));
    }

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let rows = vec![vec!["lru".to_owned(), "12 847".to_owned(), "∞".to_owned()]];
        let head = ["name", "hits", "capacity"].map(str::to_owned).to_vec();
        let html = Page::new("T").section(Section::new("S").table(Table { head, rows })).render();
        assert!(html.contains("<th>name</th><th class=\"n\">hits</th>"));
        assert!(html.contains("<td>lru</td><td class=\"n\">12 847</td><td class=\"n\">∞</td>"));
    }
}
