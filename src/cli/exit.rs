//! Exit codes: the one enum, and its page of help.

/// What the process ends with. One per run: the first that applies, in the order of [`ExitCode::precedence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Success, or nothing to do.
    Success = 0,
    /// Any other failure: file, hub, git, network, internal.
    Failure = 1,
    /// Differences found: `plan --detailed-exitcode`, `drift --detailed-exitcode`, `fmt --check`.
    Differences = 2,
    /// The config, lock or inventory is invalid.
    Invalid = 3,
    /// A model has fewer than its minimum of replicas.
    Infeasible = 4,
    /// The saved plan is stale or not applicable.
    Stale = 5,
    /// Another apply holds the lease.
    Leased = 6,
    /// Refused by a protection or a policy, or answered no.
    Refused = 7,
    /// Applied in part: some steps failed, others are done.
    Partial = 8,
    /// Facts incomplete: a node is unreachable and was not excluded.
    Incomplete = 9,
    /// The command line is wrong, or a prompt is needed and there is no terminal.
    Usage = 64,
    /// Interrupted, after a graceful stop.
    Interrupted = 130,
}

impl ExitCode {
    /// All codes with their meaning, in numeric order.
    pub const TABLE: &'static [(ExitCode, &'static str)] = &[
        (Self::Success, "success, or nothing to do"),
        (Self::Failure, "any other failure: file, hub, git, network, internal"),
        (Self::Differences, "differences found: plan --detailed-exitcode, drift --detailed-exitcode, fmt --check"),
        (Self::Invalid, "the config, lock or inventory is invalid"),
        (
            Self::Infeasible,
            "infeasible: a model has fewer than its minimum of replicas, or a provider's model no way out",
        ),
        (Self::Stale, "the saved plan is stale or not applicable"),
        (Self::Leased, "another apply holds the lease"),
        (Self::Refused, "refused by a protection or a policy, or answered no"),
        (Self::Partial, "applied in part: some steps failed, others are done"),
        (Self::Incomplete, "facts incomplete: a node is unreachable and was not excluded"),
        (Self::Usage, "the command line is wrong, or a prompt is needed and there is no terminal"),
        (Self::Interrupted, "interrupted, after a graceful stop"),
    ];

    /// Position in the order in which codes win: 64, 3, 130, 6, 5, 8, 7, 9, 4, 2, 0; 1 is every other failure.
    fn precedence(self) -> u8 {
        match self {
            Self::Usage => 0,
            Self::Invalid => 1,
            Self::Interrupted => 2,
            Self::Leased => 3,
            Self::Stale => 4,
            Self::Failure => 5,
            Self::Partial => 6,
            Self::Refused => 7,
            Self::Incomplete => 8,
            Self::Infeasible => 9,
            Self::Differences => 10,
            Self::Success => 11,
        }
    }

    /// The one of two that the process should end with.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if other.precedence() < self.precedence() { other } else { self }
    }

    /// The page that `flock help exit-codes` prints.
    pub fn help() -> String {
        let mut text = String::from(
            "Exit codes of flock. One per run, the first that applies: 64, 3, 130, 6, 5, 8, 7, 9, 4, 2, 0;\n1 is every other failure.\n\n",
        );
        for (code, meaning) in Self::TABLE {
            text.push_str(&format!("  {:>3}  {meaning}\n", *code as u8));
        }
        text
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCode;

    /// As the contract writes it; 1 stands where every other failure stands: below what says more, above success.
    const ORDER: &[ExitCode] = &[
        ExitCode::Usage,
        ExitCode::Invalid,
        ExitCode::Interrupted,
        ExitCode::Leased,
        ExitCode::Stale,
        ExitCode::Failure,
        ExitCode::Partial,
        ExitCode::Refused,
        ExitCode::Incomplete,
        ExitCode::Infeasible,
        ExitCode::Differences,
        ExitCode::Success,
    ];

    #[test]
    fn the_graver_code_wins_whatever_the_order() {
        for (place, graver) in ORDER.iter().enumerate() {
            for lesser in &ORDER[place..] {
                assert_eq!((graver.or(*lesser), lesser.or(*graver)), (*graver, *graver), "{graver:?}, {lesser:?}");
            }
        }
        // Of any number of codes, in any grouping.
        let all = ORDER.iter().rev().copied().fold(ExitCode::Success, ExitCode::or);
        assert_eq!(all, ExitCode::Usage);
    }

    /// The order and the numbers are those that `flock help exit-codes` prints, and every code is in the table.
    #[test]
    fn the_help_says_the_order_that_the_code_has() {
        let numbers: Vec<String> =
            ORDER.iter().filter(|code| **code != ExitCode::Failure).map(|code| (*code as u8).to_string()).collect();
        let help = ExitCode::help();
        assert!(help.contains(&format!("the first that applies: {};", numbers.join(", "))), "{help}");
        assert_eq!(numbers.join(", "), "64, 3, 130, 6, 5, 8, 7, 9, 4, 2, 0");
        let listed: Vec<u8> = ExitCode::TABLE.iter().map(|(code, _)| *code as u8).collect();
        assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 130]);
        assert!(ORDER.iter().all(|code| listed.contains(&(*code as u8))) && ORDER.len() == listed.len());
    }
}
