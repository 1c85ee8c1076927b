package webhook

import (
	"fmt"
	"net/netip"
	"syscall"
)

// notPublic are address ranges outside the public internet that netip does not
// know: those of IANA's special-purpose registries.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),        // maps to an IPv4 address
	netip.MustParsePrefix("64:ff9b::/96"), // maps to an IPv4 address
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // maps to an IPv4 address
	netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("5f00::/16"),
	netip.MustParsePrefix("fec0::/10"),
}

// PrivateAddressError reports a refused connection to an address that is not
// public.
type PrivateAddressError struct{ Address netip.Addr }

// Error implements error.
func (e *PrivateAddressError) Error() string {
	return fmt.Sprintf("the target is %s, which is not a public address: to allow it, set allow_private", e.Address)
}

// guard checks addresses when a connection is made, after names are resolved.
type guard struct {
	all     bool
	allowed []netip.Prefix
}

// control is net.Dialer.Control.
func (g *guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return g.check(to.Addr())
}

func (g *guard) check(ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	if g.all || isPublic(ip) {
		return nil
	}
	for _, p := range g.allowed {
		if p.Contains(ip) {
			return nil
		}
	}
	return &PrivateAddressError{ip}
}

func isPublic(ip netip.Addr) bool {
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}
