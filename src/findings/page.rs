//! Renders the templates of the pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context, value::Serde};

use super::{data::Data, filters, picture::Picture, tokens, typed, wrap::wrapped};
use crate::exit::Unusable;

/// The cluster that a template means unless it names one.
const CLUSTER: &str = "docker";

/// Renders all templates of the directory. Returns the pages, and the charts that they ask for, by their names.
///
/// # Errors
/// A template cannot be read, contains a figure that is typed by hand, or asks for what the data does not have; or no
/// page has a command for a row.
pub fn render(dir: &Path, data: Data) -> anyhow::Result<BTreeMap<String, String>> {
    let (used, charts) = (Used::default(), Charts::default());
    let environment = environment(data, &used, &charts);
    let mut pages = BTreeMap::new();
    let mut repeated = BTreeSet::new();
    let entries = std::fs::read_dir(dir).map_err(|e| Unusable(format!("{}: {e}", dir.display())))?;
    for entry in entries {
        let path = entry.with_context(|| format!("listing {}", dir.display()))?.path();
        let wrong = |problem: String| Unusable(format!("{}: {problem}", path.display()));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            return Err(wrong("expected a template, NAME.md".to_owned()).into());
        }
        let template = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
        if let Some((line, figure)) = typed::figures(&template).first() {
            return Err(wrong(format!("line {line}: `{figure}` is typed by hand; take it from the data")).into());
        }
        let page = environment.render_named_str(&name, &template, context! {}).map_err(|e| {
            let line = e.line().map(|line| format!("line {line}: ")).unwrap_or_default();
            wrong(line + e.detail().unwrap_or(&e.to_string()))
        })?;
        let head = format!("<!-- `harness findings` writes this page from pages/{name} and data/: edit those. -->\n\n");
        pages.insert(name, head + &wrapped(page.trim_end()));
        repeated.extend(page.lines().flat_map(rows));
    }
    let used = used.lock().map_err(|_| Unusable("a template could not be rendered".to_owned()))?;
    if let Some(row) = used.iter().find(|row| !repeated.contains(*row)) {
        let problem = format!("no page says how to repeat {row}: name it in a command with `--only {row}`");
        return Err(Unusable(format!("{}: {problem}", dir.display())).into());
    }
    pages.extend(charts.lock().map(|mut charts| std::mem::take(&mut *charts)).unwrap_or_default());
    Ok(pages)
}

/// The charts that the templates ask for, by the names of their files.
type Charts = Arc<Mutex<BTreeMap<String, String>>>;

/// Draws the tokens of a case and of its twin. Returns the words by which a page shows them.
fn token_chart(data: &Data, case: &str, charts: &Charts) -> Result<String, Error> {
    let of = |name: &str| data.tokens(name, CLUSTER).map_err(refused);
    let (of_case, of_twin) = (of(case)?, of(&format!("{case} twin"))?);
    let svg = tokens::svg(&of_case, &of_twin).map_err(|e| refused(e.to_string()))?;
    let (file, kinds) = (format!("tokens-{case}.svg"), format!("{} and {}", of_case.kind, of_twin.kind));
    charts.lock().map(|mut charts| charts.insert(file.clone(), svg)).ok();
    Ok(format!("![tokens in the order of acquisition: {kinds}]({file})"))
}

/// The rows of the suite that the templates ask for.
type Used = Arc<Mutex<BTreeSet<String>>>;

fn add_to(used: &Used, case: &str) {
    // A twin is run with its row.
    let row = case.strip_suffix(" twin").unwrap_or(case).to_owned();
    used.lock().map(|mut used| used.insert(row)).ok();
}

/// The rows that a line of commands runs.
fn rows(line: &str) -> Vec<String> {
    let lists = line.split("--only ").skip(1).filter_map(|rest| rest.split([' ', '`']).next());
    lists.flat_map(|list| list.split(',')).map(str::to_owned).collect()
}

fn refused(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

fn environment(data: Data, used: &Used, charts: &Charts) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("seconds", filters::seconds);
    environment.add_filter("range", filters::range);
    environment.add_filter("percent", filters::percent);
    environment.add_filter("duration", filters::duration);
    let data = Arc::new(data);
    let cluster = |cluster: Option<String>| cluster.unwrap_or_else(|| CLUSTER.to_owned());
    let (source, asked) = (data.clone(), used.clone());
    environment.add_function("claim", move |name: String, of: Option<String>| {
        add_to(&asked, &name);
        source.claim(&name, &cluster(of)).map(Serde).map_err(refused)
    });
    let (source, asked) = (data.clone(), used.clone());
    environment.add_function("figure", move |name: String, path: String, of: Option<String>| {
        add_to(&asked, &name);
        source.figure(&name, &path, &cluster(of)).map(Serde).map_err(refused)
    });
    let source = data.clone();
    environment.add_function("total", move |of: Option<String>| source.total(&cluster(of)).map(Serde).map_err(refused));
    let source = data.clone();
    environment
        .add_function("origin", move |of: Option<String>| source.origin(&cluster(of)).map(Serde).map_err(refused));
    let source = data.clone();
    environment.add_function("table", move |name: String, faults: Option<String>, of: Option<String>| {
        source.table(&name, &faults.unwrap_or_default(), &cluster(of)).map_err(refused)
    });
    let source = data.clone();
    type Words = Option<String>;
    environment.add_function("figure_table", move |name: String, figure: String, faults: Words, of: Words| {
        source.figure_table(&name, &figure, &faults.unwrap_or_default(), &cluster(of)).map_err(refused)
    });
    let source = data.clone();
    environment.add_function("table_origin", move |name: String, of: Option<String>| {
        source.table_origin(&name, &cluster(of)).map(Serde).map_err(refused)
    });
    let source = data.clone();
    environment.add_function("table_changes", move |name: String, of: Option<String>| {
        source.table_changes(&name, &cluster(of)).map_err(refused)
    });
    let source = data.clone();
    environment.add_function("dose_origin", move |of: String, cluster: String| {
        source.dose_origin(&of, &cluster).map_err(refused)
    });
    let source = data.clone();
    environment
        .add_function("picture", move |case: String| source.picture(&case).map(Picture::markdown).map_err(refused));
    let (source, asked, drawn) = (data.clone(), used.clone(), charts.clone());
    environment.add_function("token_chart", move |case: String| {
        add_to(&asked, &case);
        token_chart(&source, &case, &drawn)
    });
    let source = data.clone();
    environment.add_function("plan", move |name: String| {
        let file = &source.case(&name).map_err(refused)?.file;
        Ok::<_, Error>(Serde(toml::Value::try_from(file).map_err(|e| refused(e.to_string()))?))
    });
    let source = data.clone();
    environment.add_function("dose", move |of: String, cluster: String, ratio: f64| {
        source.point(&of, &cluster, ratio).map(Serde).map_err(refused)
    });
    environment.add_function("dose_table", move |of: String, cluster: String| {
        data.series(&of, &cluster).map(|series| series.table().replacen('|', "\n|", 1)).map_err(refused)
    });
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_how_to_repeat_each_row_that_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let [data, pages] = ["data", "pages"].map(|name| dir.path().join(name));
        std::fs::create_dir(&data).unwrap();
        std::fs::create_dir(&pages).unwrap();
        std::fs::copy("docs/findings/data/claims-docker.jsonl", data.join("claims-docker.jsonl")).unwrap();
        let data = Data::read(&data, "suites/kleppmann.toml".as_ref()).unwrap();
        for (row, asked) in [
            ("K1", "claim('K1').count"),
            ("K1", "figure('K1', 'off.data.lost_updates').max"),
            ("K5", "claim('K5 twin').count"),
            ("K5", "token_chart('K5')"),
        ] {
            let rendered = |text: String| {
                std::fs::write(pages.join("page.md"), text).unwrap();
                render(&pages, data.clone()).map_err(|e| e.to_string())
            };
            let refused = rendered(format!("{{{{ {asked} }}}}\n")).unwrap_err();
            let words = format!("no page says how to repeat {row}: name it in a command with `--only {row}`");
            assert!(refused.contains(&words), "{asked}: {refused}");
            let command = format!("`harness suite suites/kleppmann.toml --only {row}`");
            let pages = rendered(format!("{{{{ {asked} }}}}\n\nRepeat: {command}\n")).unwrap();
            assert!(pages["page.md"].contains(&command), "{asked}: {pages:?}");
        }
    }
}
