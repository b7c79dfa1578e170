//! `flock fmt`

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::base::{Tree, TreeEntry};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::{self, MAX_FILE_BYTES, Unformatted};
use crate::report::{self, Style};

/// Deepest folder that is entered.
const MAX_DEPTH: usize = 32;

/// Format KDL files; no comment is lost.
///
/// There is one way to write them and no option of style; every value stays as written. Prints the names of the files
/// that it changes. A file that cannot be read stays as it is, its errors are printed, and the exit code is 3; the
/// other files are formatted all the same.
#[derive(Debug, Args)]
pub struct FmtArgs {
    /// Change nothing; print the names of the files that are not formatted, and exit 2 if there are any
    #[arg(long)]
    check: bool,
    /// Files, or folders with *.kdl files, from the folder of -C; `-` formats standard input to standard output.
    /// Without: every file that `validate` reads
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(context: &Context, args: &FmtArgs) -> Result<ExitCode, Failure> {
    if args.paths.iter().any(|path| path.as_os_str() == "-") {
        if args.paths.len() > 1 {
            return Err(Failure::new(ExitCode::Usage, "`-` stands alone: standard input is one document"));
        }
        return standard_input(context, args.check);
    }
    let files = if args.paths.is_empty() { of_repository(context)? } else { named(&context.directory, &args.paths)? };
    let mut code = ExitCode::Success;
    for (name, path) in files {
        let bytes = read(&path)?;
        match config::format_kdl(&name, &bytes) {
            Ok(text) if text.as_bytes() == bytes => {}
            Ok(text) => {
                if args.check {
                    code = code.or(ExitCode::Differences);
                } else {
                    replace(&path, text.as_bytes())
                        .map_err(|error| failed(&format!("cannot write {}", path.display()), &error))?;
                }
                context.printer.data(&report::clean(&name))?;
            }
            Err(problem) => code = code.or(refused(context, &name, bytes, problem)?),
        }
    }
    Ok(code)
}

fn standard_input(context: &Context, check: bool) -> Result<ExitCode, Failure> {
    const NAME: &str = "<stdin>";
    let mut bytes = Vec::new();
    io::stdin()
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed("cannot read standard input", &error))?;
    match config::format_kdl(NAME, &bytes) {
        Ok(text) if check && text.as_bytes() == bytes => Ok(ExitCode::Success),
        Ok(_) if check => {
            context.printer.data(NAME)?;
            Ok(ExitCode::Differences)
        }
        Ok(text) => {
            context.printer.raw(&text)?;
            Ok(ExitCode::Success)
        }
        Err(problem) => refused(context, NAME, bytes, problem),
    }
}

/// Prints why a file was not formatted.
fn refused(context: &Context, name: &str, bytes: Vec<u8>, problem: Unformatted) -> Result<ExitCode, Failure> {
    match problem {
        Unformatted::Invalid(found) => {
            let mut tree = Tree::new();
            tree.insert(name, TreeEntry::File(bytes));
            context.printer.findings(&report::findings_text(&found, &tree, &Style::PLAIN));
            Ok(ExitCode::Invalid)
        }
        Unformatted::Unproven(what) => {
            Err(Failure::new(ExitCode::Failure, format!("{name} was left as it is: {what}"))
                .hint("this is a fault of flock; please report it with the file"))
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("{what}: {error}"))
}

/// The files that `validate` reads, by their names in the repository.
fn of_repository(context: &Context) -> Result<Vec<(String, PathBuf)>, Failure> {
    let (tree, loaded) = context.load()?;
    if loaded.files.is_empty() {
        let text = format!("there is no {} in {}", config::CLUSTER_FILE, context.directory.display());
        return Err(Failure::new(ExitCode::Invalid, text).hint("`-C DIR` names a config repository elsewhere"));
    }
    let mut files = Vec::new();
    for name in loaded.files {
        match tree.get(&name) {
            Some(TreeEntry::Refused(reason)) => {
                return Err(Failure::new(ExitCode::Invalid, format!("{name} cannot be read: {reason}")));
            }
            Some(_) => files.push((name.clone(), context.directory.join(name))),
            None => {}
        }
    }
    Ok(files)
}

/// The files that the command line names, each once.
fn named(root: &Path, paths: &[PathBuf]) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut found = BTreeSet::new();
    for path in paths {
        let full = root.join(path);
        let metadata = fs::metadata(&full).map_err(|error| {
            Failure::new(ExitCode::Usage, format!("{}: {error}", report::clean(&path.display().to_string())))
        })?;
        if metadata.is_dir() {
            folder(path, &full, 0, &mut found)?;
        } else {
            found.insert(path.clone());
        }
    }
    Ok(found.into_iter().map(|path| (shown(&path), root.join(path))).collect())
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).to_string_lossy().into_owned()
}

/// Every *.kdl file of a folder. Hidden ones and links are left out, as `validate` does with folders.
fn folder(path: &Path, full: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) -> Result<(), Failure> {
    let unreadable = |error: io::Error| failed(&format!("cannot read {}", full.display()), &error);
    for entry in fs::read_dir(full).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let kind = entry.file_type().map_err(unreadable)?;
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() && depth < MAX_DEPTH {
            folder(&path.join(&name), &entry.path(), depth + 1, found)?;
        } else if kind.is_file() && Path::new(&name).extension().is_some_and(|ending| ending == "kdl") {
            found.insert(path.join(&name));
        }
    }
    Ok(())
}

/// Reads a file as far as the formatter needs it to refuse one that is too large.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(&format!("cannot read {}", path.display()), &error))?;
    Ok(bytes)
}

/// Puts a new text in the place of a file: whole or not at all, with the permissions that it has. A link stays one.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let path = path.canonicalize()?;
    let permissions = fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is read-only"));
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let written = OpenOptions::new().write(true).create_new(true).open(&beside).and_then(|mut file| {
        file.write_all(text)?;
        file.set_permissions(permissions)?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    });
    if written.is_err() {
        // What went wrong is reported; a rest that cannot be removed either is only a stray file.
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_file_keeps_its_permissions_and_a_link_stays_one() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.kdl"), folder.path().join("b.kdl"));
        fs::write(&file, "a;b").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("a.kdl", &link).unwrap();
        replace(&link, b"a\nb\n").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"a\nb\n");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).unwrap();
        assert!(replace(&file, b"c").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    }
}
