//! How the inventory names a server.

/// The host and port of a URL, as `egress` names them: the scheme's own port where it names none. `None` for anything
/// that is no http or https URL.
pub fn endpoint_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let named =
        host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    match host {
        "" => None,
        host if named => Some(host.to_owned()),
        host => Some(format!("{}:{port}", host.trim_end_matches(':'))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let cases = [
            ("https://api.anthropic.com", Some("api.anthropic.com:443")),
            ("http://10.0.0.1:8080/v1", Some("10.0.0.1:8080")),
            ("http://gateway.lab/v1?x=1", Some("gateway.lab:80")),
            ("https://[2001:db8::1]/v1", Some("[2001:db8::1]:443")),
            ("https://[2001:db8::1]:8443", Some("[2001:db8::1]:8443")),
            ("https://user@host/", Some("host:443")),
            ("ftp://host", None),
            ("host", None),
            ("https://", None),
        ];
        for (url, wanted) in cases {
            assert_eq!(endpoint_of(url).as_deref(), wanted, "{url}");
        }
    }
}
