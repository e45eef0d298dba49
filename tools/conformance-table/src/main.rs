//! Prints which requirement of the iWARP RFCs is met by which code and shown by which test.
//!
//! ```text
//! conformance-table > docs/iwarp-conformance.md     write the table
//! conformance-table --check                         fail if the table there is another
//! ```
//!
//! The requirements are in [`REQUIREMENTS`], a file for each RFC; [`requirements`] has their form. A comment
//! cites one as `[RFC 5040 5.1-1]`, or several of an RFC as `[RFC 5040 5.1-1, 5.3-4]`.

mod citations;
mod requirements;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use citations::Citation;
use requirements::Requirements;

/// Where the requirements are.
const REQUIREMENTS: &str = "crates/iwarp-wire/requirements";
/// Whose sources cite them.
const SOURCES: [&str; 4] = ["crates/iwarp-wire", "crates/rdma-verbs", "crates/rdma-testkit", "tests"];
/// The table.
const TABLE: &str = "docs/iwarp-conformance.md";

fn main() -> ExitCode {
    let check = match std::env::args().skip(1).collect::<Vec<_>>().join(" ").as_str() {
        "" => false,
        "--check" => true,
        _ => {
            eprintln!("usage: conformance-table [--check]");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match run(&root, check) {
        Ok(table) => {
            if !check {
                print!("{table}");
            }
            ExitCode::SUCCESS
        }
        Err(faults) => {
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            ExitCode::FAILURE
        }
    }
}

/// The table, or what is wrong.
fn run(root: &Path, check: bool) -> Result<String, Vec<String>> {
    let table = join(&read_requirements(root)?, &read_citations(root)?)?;
    let written = fs::read_to_string(root.join(TABLE)).unwrap_or_default();
    if check && written != table {
        return Err(vec![format!("{TABLE} is out of date: write it anew by conformance-table > {TABLE}")]);
    }
    Ok(table)
}

/// The table, if citations and requirements fit each other.
fn join(requirements: &[Requirements], citations: &[Citation]) -> Result<String, Vec<String>> {
    let faults = table::faults(requirements, citations);
    if faults.is_empty() { Ok(table::markdown(requirements, citations)) } else { Err(faults) }
}

fn read_requirements(root: &Path) -> Result<Vec<Requirements>, Vec<String>> {
    let files = files(root, REQUIREMENTS, "txt")?;
    files.iter().map(|(name, text)| Requirements::parse(name, text).map_err(|fault| vec![fault])).collect()
}

fn read_citations(root: &Path) -> Result<Vec<Citation>, Vec<String>> {
    let mut all = Vec::new();
    for folder in SOURCES {
        for (name, text) in files(root, folder, "rs")? {
            all.extend(citations::find(&name, &text).map_err(|fault| vec![fault])?);
        }
    }
    Ok(all)
}

/// The files below `folder` with this extension, by name from `root`, and their text.
fn files(root: &Path, folder: &str, extension: &str) -> Result<Vec<(String, String)>, Vec<String>> {
    let mut found = Vec::new();
    collect(&root.join(folder), extension, &mut found).map_err(|error| vec![format!("{folder}: {error}")])?;
    found.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        fs::read_to_string(&path)
            .map(|text| (name, text))
            .map_err(|error| vec![format!("{}: {error}", path.display())])
    };
    found.into_iter().map(read).collect()
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, extension, found)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIREMENTS: &str = "The protocol\n\nOthers are left out.\n\n\
        1.2-1 MUST done\nThis is so.\n\n\
        1.2-2 MUST NOT partly\nThat is not so.\nReason: but sometimes.\n\n\
        9-1 SHOULD open\nThat would be.\nReason: nobody did it.\n";
    const CODE: &str = "/// It is [RFC 5040 1.2-1, 1.2-2].\nfn so() {}\n";

    fn joined(code: &str, tests: &str) -> Result<String, Vec<String>> {
        let requirements = Requirements::parse("x/rfc5040.txt", REQUIREMENTS).unwrap();
        let sources = [("crates/a/src/b.rs", code), ("crates/a/tests/c.rs", tests)];
        let citations: Vec<_> =
            sources.iter().flat_map(|(name, text)| citations::find(name, text).unwrap()).collect();
        join(&[requirements], &citations)
    }

    #[test]
    fn what_is_cited_in_code_and_tests_gives_a_table() {
        let table = joined(CODE, CODE).unwrap();
        for row in [
            "| 1.2-1 | MUST | This is so. | [so](../crates/a/src/b.rs) | [so](../crates/a/tests/c.rs) |",
            "| 1.2-2 | MUST NOT | That is not so. *Partly:* but sometimes. | \
             [so](../crates/a/src/b.rs) | [so](../crates/a/tests/c.rs) |",
            "| 9-1 | SHOULD | That would be. *Open:* nobody did it. | | |",
        ] {
            assert!(table.lines().any(|line| line == row), "{row}\n{table}");
        }
    }

    #[test]
    fn a_missing_citation_is_seen() {
        let half = CODE.replace(", 1.2-2", "");
        assert_eq!(
            joined(&half, CODE),
            Err(vec!["RFC 5040 1.2-2 is partly done, and no code cites it".into()])
        );
        assert_eq!(
            joined(CODE, &half),
            Err(vec!["RFC 5040 1.2-2 is partly done, and no test cites it".into()])
        );
        assert_eq!(joined("", "").unwrap_err().len(), 4);
    }

    #[test]
    fn a_citation_of_nothing_is_seen() {
        let unknown = CODE.replace("1.2-2]", "1.2-2, 1.2-3]");
        let fault = "crates/a/src/b.rs cites RFC 5040 1.2-3, which is not in the list";
        assert_eq!(joined(&unknown, CODE), Err(vec![fault.into()]));
        let open = CODE.replace("1.2-2]", "1.2-2, 9-1]");
        let fault = "crates/a/src/b.rs cites RFC 5040 9-1, which is said to be open";
        assert_eq!(joined(&open, CODE), Err(vec![fault.into()]));
    }

    #[test]
    fn another_table_than_the_written_one_is_seen() {
        let root = std::env::temp_dir().join(format!("conformance-table-{}", std::process::id()));
        for folder in SOURCES.iter().chain(&[super::REQUIREMENTS, "docs"]) {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join(super::REQUIREMENTS).join("rfc5040.txt"), REQUIREMENTS).unwrap();
        fs::write(root.join("crates/iwarp-wire/a.rs"), CODE).unwrap();
        fs::write(root.join("crates/rdma-testkit/b.rs"), CODE).unwrap();
        let table = run(&root, false).unwrap();
        assert!(run(&root, true).is_err(), "there is none");
        fs::write(root.join(TABLE), &table).unwrap();
        assert_eq!(run(&root, true).as_ref(), Ok(&table));
        fs::write(root.join("crates/rdma-testkit/b.rs"), CODE.replace("so()", "thus()")).unwrap();
        assert!(run(&root, true).is_err(), "a test has another name");
        fs::remove_dir_all(&root).unwrap();
    }
}
