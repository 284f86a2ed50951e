package probe

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
)

// dnsName returns s as an absolute name: one with and one without a final dot are the
// same.
func dnsName(s string) (dnsmessage.Name, error) {
	if s == "." {
		return dnsmessage.MustNewName("."), nil
	}
	s = strings.TrimSuffix(s, ".")
	if len(s) > 253 {
		return dnsmessage.Name{}, fmt.Errorf("got a name of %d bytes, want at most 253", len(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" {
			return dnsmessage.Name{}, fmt.Errorf("got %q with an empty label, want labels of 1 to 63 bytes", s)
		}
		if len(label) > 63 {
			return dnsmessage.Name{}, fmt.Errorf("got a label of %d bytes, want 1 to 63", len(label))
		}
	}
	return dnsmessage.NewName(s + ".")
}

// dnsQuery returns a query for one question.
func dnsQuery(id uint16, recurse bool, q dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: recurse},
		Questions: []dnsmessage.Question{q},
	}
	return m.Pack()
}

// dnsReply is what a reply says that matters to a probe.
type dnsReply struct {
	rcode         dnsmessage.RCode
	authoritative bool
	truncated     bool
	addrs         []netip.Addr // in the answer section
	soa           bool         // an SOA record of the name asked for
}

// dnsHeader is the length of a message's header (RFC 1035 section 4.1.1).
const dnsHeader = 12

// parseDNS parses a datagram or message. It returns an *ignoredError for what is no
// reply to the query.
func parseDNS(b []byte, id uint16, q dnsmessage.Question) (r dnsReply, err error) {
	if len(b) < dnsHeader {
		return r, healthcheck.Mismatch(b, "a reply of at least 12 bytes")
	}
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return r, err
	}
	if h.ID != id {
		return r, ignoref("id %d, want %d", h.ID, id)
	}
	if !h.Response {
		return r, ignoref("a query (QR=0), want a reply")
	}
	r = dnsReply{rcode: h.RCode, authoritative: h.Authoritative, truncated: h.Truncated}
	qs, err := p.AllQuestions()
	if err != nil {
		return r, malformed(r, err)
	}
	switch {
	case len(qs) == 0 && r.rcode != dnsmessage.RCodeSuccess:
		return r, nil // a server that could not or would not read the query
	case len(qs) != 1 || !sameQuestion(qs[0], q):
		return r, ignoref("a reply to another question than %s", q.Name)
	}
	for {
		rh, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone { //nolint:errorlint // the parser returns it bare
			return r, nil
		}
		if err == nil {
			err = r.answer(&p, rh, q)
		}
		if err != nil {
			return r, malformed(r, err)
		}
	}
}

// malformed: what does not unpack in a truncated reply is what was cut off.
func malformed(r dnsReply, err error) error {
	if r.truncated {
		return nil
	}
	return fmt.Errorf("malformed reply: %w", err)
}

func (r *dnsReply) answer(p *dnsmessage.Parser, h dnsmessage.ResourceHeader, q dnsmessage.Question) error {
	switch {
	case h.Class != dnsmessage.ClassINET:
	case h.Type == dnsmessage.TypeA && q.Type == h.Type:
		a, err := p.AResource()
		r.addrs = append(r.addrs, netip.AddrFrom4(a.A))
		return err
	case h.Type == dnsmessage.TypeAAAA && q.Type == h.Type:
		a, err := p.AAAAResource()
		r.addrs = append(r.addrs, netip.AddrFrom16(a.AAAA))
		return err
	case h.Type == dnsmessage.TypeSOA:
		_, err := p.SOAResource()
		r.soa = r.soa || sameName(h.Name, q.Name)
		return err
	}
	return p.SkipAnswer()
}

func sameQuestion(a, b dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && sameName(a.Name, b.Name)
}

func sameName(a, b dnsmessage.Name) bool {
	return strings.EqualFold(a.String(), b.String())
}
