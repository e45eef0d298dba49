//! Requirements and citations side by side.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::citations::Citation;
use crate::requirements::{Requirement, Requirements, Status};

/// What does not fit.
pub(crate) fn faults(requirements: &[Requirements], citations: &[Citation]) -> Vec<String> {
    let mut faults = Vec::new();
    for citation in citations {
        let Citation { rfc, id, file, .. } = citation;
        match find(requirements, citation) {
            None => faults.push(format!("{file} cites RFC {rfc} {id}, which is not in the list")),
            Some(known) if !known.status.is_cited() => {
                let status = known.status.label().to_lowercase();
                faults.push(format!("{file} cites RFC {rfc} {id}, which is said to be {status}"));
            }
            Some(_) => {}
        }
    }
    for (list, requirement) in each(requirements).filter(|(_, requirement)| requirement.status.is_cited()) {
        for (test, whose) in [(false, "code"), (true, "test")] {
            if places(list, requirement, citations, test).is_empty() {
                let (rfc, id) = (&list.rfc, &requirement.id);
                let done = if requirement.status == Status::Done { "done" } else { "partly done" };
                faults.push(format!("RFC {rfc} {id} is {done}, and no {whose} cites it"));
            }
        }
    }
    faults
}

fn each(requirements: &[Requirements]) -> impl Iterator<Item = (&Requirements, &Requirement)> {
    requirements.iter().flat_map(|list| list.all.iter().map(move |requirement| (list, requirement)))
}

fn find<'r>(requirements: &'r [Requirements], citation: &Citation) -> Option<&'r Requirement> {
    each(requirements)
        .find(|(list, requirement)| list.rfc == citation.rfc && requirement.id == citation.id)
        .map(|(_, requirement)| requirement)
}

/// Links to where a requirement is cited.
fn places(
    list: &Requirements,
    requirement: &Requirement,
    citations: &[Citation],
    test: bool,
) -> BTreeSet<String> {
    let cites = |citation: &&Citation| {
        citation.test == test && citation.rfc == list.rfc && citation.id == requirement.id
    };
    let link = |citation: &Citation| format!("[{}](../{})", citation.item, citation.file);
    citations.iter().filter(cites).map(link).collect()
}

const INTRODUCTION: &str = "\
# iWARP conformance

Which requirement of the iWARP RFCs is met by which code of the embedded device, and shown by which test. The
requirements are listed in our words in `crates/iwarp-wire/requirements`; the RFCs' own text is what counts. Code and
tests cite them in comments. This table is printed by `cargo run -p conformance-table`, and a test step compares it.

*Partly* and *Open* say what is missing, *Elsewhere* whose affair the requirement is.
";

/// The table, as a document.
pub(crate) fn markdown(requirements: &[Requirements], citations: &[Citation]) -> String {
    let mut out = String::from(INTRODUCTION);
    // Writing to a string cannot fail.
    let _ = write_tables(&mut out, requirements, citations);
    out
}

fn write_tables(out: &mut String, requirements: &[Requirements], citations: &[Citation]) -> std::fmt::Result {
    writeln!(out, "\n| RFC | requirements | done | partly | open | elsewhere |\n|---|---|---|---|---|---|")?;
    for list in requirements {
        let ids = |status| {
            let of = list.all.iter().filter(|requirement| requirement.status == status);
            of.map(|requirement| requirement.id.as_str()).collect::<Vec<_>>()
        };
        let (partly, open) = (ids(Status::Partly).join(", "), ids(Status::Open).join(", "));
        let (done, other) = (ids(Status::Done).len(), ids(Status::Other).len());
        writeln!(
            out,
            "| {} {} | {} | {done} | {partly} | {open} | {other} |",
            list.rfc,
            list.name,
            list.all.len()
        )?;
    }
    for list in requirements {
        writeln!(out, "\n## RFC {}: {}\n\n{}\n", list.rfc, list.name, list.preface)?;
        writeln!(out, "| section | level | requirement | code | test |\n|---|---|---|---|---|")?;
        for requirement in &list.all {
            let Requirement { id, level, status, text, reason } = requirement;
            write!(out, "| {id} | {level} | {text}")?;
            if *status != Status::Done {
                write!(out, " *{}:* {reason}", status.label())?;
            }
            for test in [false, true] {
                let links = places(list, requirement, citations, test);
                write!(out, " |")?;
                for (at, link) in links.iter().enumerate() {
                    write!(out, "{} {link}", if at > 0 { "," } else { "" })?;
                }
            }
            writeln!(out, " |")?;
        }
    }
    Ok(())
}
