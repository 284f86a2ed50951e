package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
)

// DNS asks for an address of Name, or the SOA record of Zone, or both; then both must
// be right. An address query passes with NOERROR and an address, a zone query with an
// authoritative NOERROR and the SOA record. A truncated reply is asked for again over
// TCP. What does not belong to the query (other id, question, or a query) is passed
// over.
//
// The zero DNS only asks for life: the name servers of the root, to which any of
// NOERROR, NXDOMAIN and REFUSED is an answer. It is a plain value, safe for concurrent
// use.
type DNS struct {
	Dialer Dialer // nil: the system's choices
	// Name is what an address is asked of, with or without the final dot.
	Name string
	// IPv6 has AAAA records asked for instead of A.
	IPv6 bool
	// Expect, if any: one of them must be among the addresses of Name.
	Expect []netip.Addr
	// Zone is what the SOA record is asked of.
	Zone string
	// RecursionDesired sets RD in the queries.
	RecursionDesired bool
	// RCodes are accepted response codes (RFC 1035 section 4.1.1). With one other
	// than 0 no record is needed. Default: 0 (NOERROR) alone; with Life 0 and 3.
	RCodes []uint8
	// Life has any reply with an accepted response code pass, with or without
	// records, authoritative or not, truncated or whole.
	Life bool
	// TCP has the queries sent over TCP from the start.
	TCP bool
	// Retries is how often a query is repeated that nothing answers; default 2,
	// negative: none.
	Retries int
}

// Validate reports all faults of p.
func (p DNS) Validate() error {
	_, err := p.queries()
	errs := []error{err}
	if len(p.Expect) > 0 && p.Name == "" {
		errs = append(errs, errors.New("probe: DNS.Expect: got addresses without a Name, want a Name to ask of"))
	}
	for _, a := range p.Expect {
		if !a.IsValid() || a.Is6() != p.IPv6 {
			errs = append(errs, fmt.Errorf("probe: DNS.Expect: got %v with IPv6 %v, want an address of that family", a, p.IPv6))
		}
	}
	for _, c := range p.RCodes {
		if c > 15 {
			errs = append(errs, fmt.Errorf("probe: DNS.RCodes: got %d, want 0 to 15", c))
		}
	}
	if p.Retries > 10 {
		errs = append(errs, fmt.Errorf("probe: DNS.Retries: got %d, want at most 10", p.Retries))
	}
	return errors.Join(errs...)
}

// dnsCheck is one query and how its reply is judged.
type dnsCheck struct {
	step string
	dnsmessage.Question
}

func (p DNS) queries() (checks []dnsCheck, err error) {
	var errs []error
	add := func(field, step, name string, t dnsmessage.Type) {
		n, err := dnsName(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("probe: DNS.%s: %w", field, err))
		}
		checks = append(checks, dnsCheck{step, dnsmessage.Question{Name: n, Type: t, Class: dnsmessage.ClassINET}})
	}
	if p.Name != "" {
		t := dnsmessage.TypeA
		if p.IPv6 {
			t = dnsmessage.TypeAAAA
		}
		add("Name", "address of "+p.Name, p.Name, t)
	}
	if p.Zone != "" {
		add("Zone", "zone "+p.Zone, p.Zone, dnsmessage.TypeSOA)
	}
	if len(checks) == 0 {
		add("Name", "root", ".", dnsmessage.TypeNS)
	}
	return checks, errors.Join(errs...)
}

func (p DNS) accepts(c dnsmessage.RCode) bool {
	switch {
	case len(p.RCodes) > 0:
		return c <= 15 && slices.Contains(p.RCodes, uint8(c))
	case p.Name == "" && p.Zone == "":
		return c == dnsmessage.RCodeSuccess || c == dnsmessage.RCodeNameError || c == dnsmessage.RCodeRefused
	case p.Life:
		return c == dnsmessage.RCodeSuccess || c == dnsmessage.RCodeNameError
	}
	return c == dnsmessage.RCodeSuccess
}

// Probe implements [healthcheck.Prober].
func (p DNS) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("dns", target, err)
	}
	p.Life = p.Life || p.Name == "" && p.Zone == ""
	checks, _ := p.queries()
	a := begin(ctx, "dns", p.Dialer, target)
	defer a.end()
	for _, c := range checks {
		a.step = c.step
		if err := p.ask(a, c); err != nil {
			return a.result(err)
		}
	}
	return a.result(nil)
}

// ask makes one query, over TCP if the reply to a datagram is cut off.
func (p DNS) ask(a *attempt, c dnsCheck) error {
	id := uint16(rand.Uint32())
	query, err := dnsQuery(id, p.RecursionDesired, c.Question)
	if err != nil {
		return localError{err}
	}
	var reply dnsReply
	if !p.TCP {
		err = a.overUDP(func(conn net.Conn) error {
			return a.exchange(conn, query, retries(p.Retries), func(b []byte) (err error) {
				reply, err = parseDNS(b, id, c.Question)
				return err
			})
		})
		if err != nil || !reply.truncated || p.Life {
			return p.judge(reply, c, err)
		}
		a.note = "truncated, asked again over TCP"
	}
	reply, err = p.askTCP(a, query, id, c.Question)
	if err != nil && !p.TCP {
		err = fmt.Errorf("truncated, then over TCP: %w", cause(err))
	}
	return p.judge(reply, c, err)
}

// askTCP asks over TCP, where two bytes of length precede each message (RFC 1035
// section 4.2.2).
func (p DNS) askTCP(a *attempt, query []byte, id uint16, q dnsmessage.Question) (reply dnsReply, err error) {
	a.first = true
	err = a.overTCP(maxDNSStream, func(s *stream) error {
		b := binary.BigEndian.AppendUint16(nil, uint16(len(query)))
		if err := s.send(append(b, query...)); err != nil {
			return err
		}
		reply, err = readDNS(s.reader, id, q)
		return err
	})
	return reply, err
}

// readDNS reads messages until one is the reply.
func readDNS(r *reader, id uint16, q dnsmessage.Question) (dnsReply, error) {
	for {
		b, err := r.readFull(2)
		if err != nil {
			return dnsReply{}, err
		}
		if b, err = r.readFull(int(binary.BigEndian.Uint16(b))); err != nil {
			return dnsReply{}, err
		}
		reply, err := parseDNS(b, id, q)
		if _, ok := errors.AsType[*ignoredError](err); !ok {
			return reply, err
		}
	}
}

// maxDNSStream leaves room for one message of the greatest length.
const maxDNSStream = 2 + 1<<16

func (p DNS) judge(r dnsReply, c dnsCheck, err error) error {
	switch {
	case err != nil:
		return err
	case !p.accepts(r.rcode):
		return healthcheck.Mismatch(rcodeName(r.rcode), "an accepted response code")
	case p.Life || r.rcode != dnsmessage.RCodeSuccess:
		return nil
	case c.Type == dnsmessage.TypeSOA && !r.authoritative:
		return healthcheck.Mismatch("a reply without authority (AA=0)", "an authoritative SOA record")
	case c.Type == dnsmessage.TypeSOA && !r.soa:
		return healthcheck.Mismatch("no SOA record", "an authoritative SOA record")
	case c.Type != dnsmessage.TypeSOA && len(r.addrs) == 0:
		return healthcheck.Mismatch("no address", "an address")
	case c.Type != dnsmessage.TypeSOA && len(p.Expect) > 0 && !p.expected(r.addrs):
		return healthcheck.Mismatch(fmt.Sprint(r.addrs), fmt.Sprintf("one of %v", p.Expect))
	}
	return nil
}

func (p DNS) expected(addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(p.Expect, a) })
}

// rcodeName is "SERVFAIL" and so on.
func rcodeName(c dnsmessage.RCode) string {
	names := [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}
	if int(c) < len(names) {
		return names[c]
	}
	return strings.ToUpper(fmt.Sprintf("response code %d", c))
}

// retries is the value of a field Retries.
func retries(n int) int {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return defaultRetries
	}
	return n
}
