//! Which proxy stands before a server, as the node's environment says it. The rules are those of curl.

use std::net::IpAddr;

/// The proxy for a host, from variables that `get` reads: `HTTPS_PROXY` or `HTTP_PROXY` by the address's kind, then
/// `ALL_PROXY`, each in small letters first; none for what `NO_PROXY` names.
pub fn choose(plain: bool, host: &str, get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let named = |name: &str| {
        let found = get(&name.to_ascii_lowercase()).or_else(|| get(name));
        found.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let proxy = named(if plain { "HTTP_PROXY" } else { "HTTPS_PROXY" }).or_else(|| named("ALL_PROXY"))?;
    let direct = named("NO_PROXY").is_some_and(|list| list.split([',', ' ']).any(|entry| names(entry.trim(), host)));
    (!direct).then_some(proxy)
}

/// Whether an entry of `NO_PROXY` names a host: itself, a domain above it, an address or a range of addresses.
fn names(entry: &str, host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    let entry = entry.to_ascii_lowercase();
    if entry == "*" {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        let (network, bits) = match entry.split_once('/') {
            Some((network, bits)) => (network, bits.parse().ok()),
            None => (entry.as_str(), Some(128)),
        };
        let network = network.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        return network.is_ok_and(|network| bits.is_some_and(|bits| is_within(address, network, bits)));
    }
    let domain = entry.trim_start_matches('*').trim_start_matches('.').trim_end_matches('.');
    !domain.is_empty() && (host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32_u32.saturating_sub(bits);
            let head = |address| u32::from(address).checked_shr(shift).unwrap_or(0);
            head(address) == head(network)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128_u32.saturating_sub(bits);
            let head = |address| u128::from(address).checked_shr(shift).unwrap_or(0);
            head(address) == head(network)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_address_chooses_and_no_proxy_excepts() {
        let environment = |name: &str| match name {
            "https_proxy" => Some("http://secure:3128".to_owned()),
            "HTTPS_PROXY" => Some("http://shadowed:1".to_owned()),
            "HTTP_PROXY" => Some("plain:8080".to_owned()),
            "NO_PROXY" => Some("localhost, lab.example,.corp.example,10.0.0.0/8,::1 192.168.1.7".to_owned()),
            _ => None,
        };
        let choose = |plain, host| choose(plain, host, environment);
        assert_eq!(choose(false, "huggingface.co").as_deref(), Some("http://secure:3128"));
        assert_eq!(choose(true, "huggingface.co").as_deref(), Some("plain:8080"));
        for direct in
            ["localhost", "LAB.example", "hub.lab.example", "x.corp.example", "10.77.0.11", "[::1]", "192.168.1.7"]
        {
            assert_eq!(choose(false, direct), None, "{direct}");
        }
        for through in ["collab.example", "11.0.0.1", "192.168.1.70", "[::2]", "lab.example.evil"] {
            assert!(choose(false, through).is_some(), "{through}");
        }
    }

    #[test]
    fn one_for_all_and_none_at_all() {
        let all = |name: &str| (name == "all_proxy").then(|| "socks5://p:1080".to_owned());
        assert_eq!(choose(false, "h", all).as_deref(), Some("socks5://p:1080"));
        assert_eq!(choose(false, "h", |_| None), None);
        assert_eq!(choose(false, "h", |name| (name == "https_proxy").then(String::new)), None);
        let everything = |name: &str| Some(if name == "no_proxy" { "*" } else { "p:1" }.to_owned());
        assert_eq!(choose(false, "h", everything), None);
        assert!(names("0.0.0.0/0", "1.2.3.4") && !names("1.2.3.4/x", "1.2.3.4") && !names("", "h") && !names(".", "h"));
    }
}
