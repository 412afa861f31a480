//! Pages of the guide, and the code blocks in them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Why the commands of a block are not run: `needs=REASON` behind the block's language. With what
/// each reason means.
pub(crate) const REASONS: [(&str, &str); 7] = [
    ("hardware", "an RDMA adapter, a GPU, or a program that uses one"),
    ("cluster", "a scheduler, a container runtime, or other machines"),
    ("root", "a change of the system"),
    ("package", "a file of a release"),
    ("source", "the source tree: targets of make, which CI runs, and scripts that measure for minutes"),
    ("terminal", "a person at a terminal"),
    ("name", "a path, a process or a host that the reader names"),
];

/// A block of commands, or of their output.
#[derive(Debug)]
pub(crate) struct Block {
    /// Line of the page, counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// `sh`: commands for a shell.
    Commands { exit: i32, needs: Option<String> },
    /// `console`: prompts with the name of a host, commands, and lines of their output.
    Session { needs: Option<String> },
    /// `text output`: lines of what the commands before it print.
    Output,
    /// `<!-- simulated HOST: COMMAND -->`: what makes the test's machine the one of the page. Without
    /// HOST it counts for all.
    Simulated { host: Option<String> },
    /// Any other language, such as `yaml`.
    Other,
}

pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) blocks: Vec<Block>,
    /// Blocks that do not fit this form, in words.
    pub(crate) faults: Vec<String>,
}

/// Returns the root of the source tree.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Reads README.md and all pages of the guide.
pub(crate) fn all() -> Vec<Page> {
    let folder = fs::read_dir(root().join("docs/guide")).unwrap();
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.push(root().join("README.md"));
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

impl Page {
    pub(crate) fn read(path: PathBuf) -> Self {
        let source = fs::read_to_string(&path).unwrap();
        let (mut blocks, mut faults) = (Vec::new(), Vec::new());
        let mut open: Option<(usize, String)> = None;
        let mut text = String::new();
        let line_of = |range: &Range<usize>| source[..range.start].lines().count() + 1;
        for (event, range) in Parser::new_ext(&source, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    open = Some((line_of(&range), info));
                }
                Event::Start(Tag::HtmlBlock) => open = Some((line_of(&range), String::new())),
                Event::Text(piece) | Event::Html(piece) if open.is_some() => text += &piece,
                Event::End(TagEnd::CodeBlock) => {
                    let (line, info) = open.take().expect("the block was opened");
                    let text = std::mem::take(&mut text);
                    match kind(&info) {
                        Ok(kind) => blocks.push(Block { line, text, kind }),
                        Err(why) => {
                            faults.push(format!("{}:{line}: {why}", path.file_name().unwrap().display()))
                        }
                    }
                }
                Event::End(TagEnd::HtmlBlock) => {
                    let (line, _) = open.take().expect("the block was opened");
                    blocks.extend(simulated(line, &std::mem::take(&mut text)));
                }
                _ => {}
            }
        }
        Self { path, blocks, faults }
    }

    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap().to_string_lossy().into_owned()
    }
}

/// Reads what stands behind the fence.
fn kind(info: &str) -> Result<Kind, String> {
    let mut words = info.split_whitespace();
    let language = words.next().ok_or("a code block without a fence or without a language")?;
    let (mut needs, mut exit) = (None, 0);
    let mut is_output = false;
    for word in words {
        match word.split_once('=') {
            Some(("needs", reason)) if REASONS.iter().any(|(known, _)| *known == reason) => {
                needs = Some(reason.to_owned())
            }
            Some(("needs", reason)) => return Err(format!("needs={reason}: not one of {REASONS:#?}")),
            Some(("exit", code)) => exit = code.parse().map_err(|e| format!("exit={code}: {e}"))?,
            None if (language, word) == ("text", "output") => is_output = true,
            _ => return Err(format!("{word}: not known behind {language}")),
        }
    }
    match language {
        "sh" => Ok(Kind::Commands { exit, needs }),
        "console" => Ok(Kind::Session { needs }),
        "bash" | "shell" => Err(format!("{language}: commands are \"sh\" or \"console\"")),
        _ if needs.is_some() => Err(format!("needs= behind {language}, which is not run")),
        _ if is_output => Ok(Kind::Output),
        _ => Ok(Kind::Other),
    }
}

fn simulated(line: usize, html: &str) -> Option<Block> {
    let comment = html.trim().strip_prefix("<!-- simulated")?.strip_suffix("-->")?;
    let (host, command) = comment.split_once(':')?;
    let host = Some(host.trim().to_owned()).filter(|host| !host.is_empty());
    let text = command.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(Block { line, text, kind: Kind::Simulated { host } })
}
