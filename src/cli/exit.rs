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
        (Self::Differences, "differences found: plan --detailed-exitcode, drift --detailed-exitcode"),
        (Self::Invalid, "the config, lock or inventory is invalid"),
        (Self::Infeasible, "infeasible: a model has fewer than its minimum of replicas"),
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

    #[test]
    fn the_graver_code_wins_whatever_the_order() {
        assert_eq!(ExitCode::Infeasible.or(ExitCode::Incomplete), ExitCode::Incomplete);
        assert_eq!(ExitCode::Partial.or(ExitCode::Refused), ExitCode::Partial);
        assert_eq!(ExitCode::Differences.or(ExitCode::Success), ExitCode::Differences);
        assert_eq!(ExitCode::Success.or(ExitCode::Infeasible), ExitCode::Infeasible);
    }
}
