//! What a node's member record may say about other nodes. Whoever answers with the highest generation decides which
//! machines are gone to next and under which names: each word is held against the rules of the config here, once,
//! before anything is done with it.

use std::collections::BTreeSet;

use crate::base::Hop;
use crate::config::name_problem;
use crate::inventory::{MemberNode, MemberRecord};

/// The longest login name, host key and row of jump hosts.
const LONGEST: usize = 4096;

/// Drops from a record the nodes that no flock wrote down; says which, and what is wrong with them.
pub(super) fn vet(record: &mut MemberRecord) -> Vec<String> {
    let mut dropped = Vec::new();
    let mut seen = BTreeSet::new();
    record.nodes.retain(|member| {
        let problem = problem(member).or_else(|| (!seen.insert(member.name.clone())).then_some("it is there twice"));
        if let Some(problem) = problem {
            let name: String = member.name.chars().take(64).collect();
            dropped.push(format!("`{}` is left out: {problem}", name.escape_debug()));
        }
        problem.is_none()
    });
    dropped
}

/// What is wrong with a member; `None` for one as flock writes it.
fn problem(member: &MemberNode) -> Option<&'static str> {
    if name_problem(&member.name).is_some() {
        return Some("its name is not one that a config could give");
    }
    if member.address == "local" {
        let bare = MemberNode { name: member.name.clone(), address: "local".into(), ..MemberNode::default() };
        return (MemberNode { port: 0, ..member.clone() } != bare).then_some("a local node has no way to it");
    }
    let wrong = |text: &Option<String>, fine: fn(&str) -> bool| text.as_deref().is_some_and(|text| !fine(text));
    if !is_host(&member.address) || member.port == 0 {
        Some("its address is not a host and a port")
    } else if wrong(&member.user, is_login) {
        Some("its login name is not one")
    } else if wrong(&member.alias, is_host) {
        Some("its alias is not a host name")
    } else if wrong(&member.jump, is_way) {
        Some("its jump hosts are not hosts")
    } else if wrong(&member.host_key, is_key) {
        Some("its host key is not a key")
    } else {
        None
    }
}

fn is_host(text: &str) -> bool {
    // One hop of the way, written without a login name or a port.
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    !bare.contains(['@', '[', ']', ',', '/'])
        && matches!(Hop::parse_row(&format!("[{bare}]")).as_deref(), Ok([hop]) if hop.host == bare)
}

fn is_login(text: &str) -> bool {
    let fine = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '@' | '$' | '\\');
    !text.is_empty() && text.len() <= LONGEST && !text.starts_with('-') && text.chars().all(fine)
}

fn is_way(text: &str) -> bool {
    let fine = |hop: &Hop| hop.user.as_deref().is_none_or(is_login);
    text.len() <= LONGEST && Hop::parse_row(text).is_ok_and(|hops| hops.iter().all(fine))
}

/// `algorithm base64`, the algorithm named within as well.
fn is_key(text: &str) -> bool {
    let Some((algorithm, encoded)) = text.split_once(' ') else { return false };
    let named = algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'@'));
    let name = decoded(encoded).and_then(|bytes| {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        rest.get(..u32::from_be_bytes(*length) as usize).map(<[u8]>::to_vec)
    });
    text.len() <= LONGEST && named && !algorithm.is_empty() && name.as_deref() == Some(algorithm.as_bytes())
}

/// Base64 with its padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let bare = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - bare.len() > 2 {
        return None;
    }
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for byte in bare.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";

    fn member() -> MemberNode {
        MemberNode {
            name: "ada-1".into(),
            address: "10.0.0.1".into(),
            port: 22,
            user: Some("ada".into()),
            host_key: Some(KEY.into()),
            alias: Some("ada".into()),
            jump: Some("me@gate:2222,inner".into()),
        }
    }

    #[test]
    fn what_flock_writes_down_stays() {
        let local = MemberNode { name: "here".into(), address: "local".into(), ..MemberNode::default() };
        let user =
            |user: &str| MemberNode { name: user.replace(['\\', '@'], "-"), user: Some(user.into()), ..member() };
        let plain = MemberNode { name: "p".into(), user: None, host_key: None, alias: None, jump: None, ..member() };
        let six = MemberNode { name: "rack+6_é".into(), address: "fe80::1%eth0".into(), ..member() };
        let nodes = vec![member(), local, plain, six, user("CORP\\ada"), user("ada@corp.example"), user("ädä")];
        let mut record = MemberRecord { nodes: nodes.clone(), ..MemberRecord::default() };
        assert_eq!(vet(&mut record), Vec::<String>::new());
        assert_eq!(record.nodes, nodes);
    }

    #[test]
    fn words_that_could_do_more_than_name_a_node_are_dropped_and_said() {
        let with = |change: fn(&mut MemberNode, String), words: &[&str]| -> Vec<MemberNode> {
            let made = words.iter().map(|word| {
                let mut member = member();
                change(&mut member, (*word).to_owned());
                member
            });
            made.collect()
        };
        let hosts =
            ["", "x,*", "-oProxyCommand=x", "a b", "$(x)", "a\n", "*", "a/b", "u@h", "!a", "h:x]", "a'b", "a\\"];
        let mut hostile = Vec::new();
        hostile
            .extend(with(|m, word| m.name = word, &["", "x\\'; echo INJECTED; #", "a\nb", "!x", "../x", "-x", "a b"]));
        hostile.extend(with(|m, word| m.address = word, &hosts));
        hostile.extend(with(|m, word| m.alias = Some(word), &hosts));
        hostile
            .extend(with(|m, word| m.user = Some(word), &["", "-x", "a b", "a;b", "a'b", "a\nb", "a\u{1b}[2J", "`x`"]));
        hostile.extend(with(|m, word| m.jump = Some(word), &["", "a'b@gate", "gate,$(x)", "a;b@gate", "-x", "x,*"]));
        let keys = ["", "ssh-ed25519", "ssh-ed25519 K", "x\ny AAAA", "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA", "* AAAA"];
        hostile.extend(with(|m, word| m.host_key = Some(word), &keys));
        hostile.push(MemberNode { port: 0, ..member() });
        hostile.push(MemberNode { address: "local".into(), ..member() });
        for member in hostile {
            let mut record = MemberRecord { nodes: vec![member.clone()], ..MemberRecord::default() };
            let said = vet(&mut record);
            assert!(record.nodes.is_empty() && said.len() == 1, "{member:?}");
            assert!(!said[0].chars().any(char::is_control), "{said:?}");
        }
        let mut twice = MemberRecord { nodes: vec![member(), member()], ..MemberRecord::default() };
        assert_eq!((vet(&mut twice).len(), twice.nodes.len()), (1, 1));
    }
}
