package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/healthcheck"
)

// LDAP makes a simple bind and wants result code 0 (RFC 4511 section 4.2), then
// unbinds. The zero LDAP binds anonymously with version 3. It is a plain value, safe
// for concurrent use.
type LDAP struct {
	Dialer   Dialer // nil: the system's choices
	Version  uint8  // 2 or 3; default 3
	DN       string // empty: anonymous
	Password string // of the bind
	// ResultCodes, if any, replace 0: with 49, for example, a server that refuses
	// the credentials counts as alive.
	ResultCodes []uint8
	// StartTLS asks for TLS (RFC 4511 section 4.14) before the bind.
	StartTLS bool
	TLS      *tls.Config // see [TLS.Config]
}

// Validate reports all faults of p.
func (p LDAP) Validate() error {
	var errs []error
	if p.Version != 0 && p.Version != 2 && p.Version != 3 {
		errs = append(errs, fmt.Errorf("probe: LDAP.Version: got %d, want 2 or 3", p.Version))
	}
	if p.StartTLS && p.Version == 2 {
		errs = append(errs, errors.New("probe: LDAP.StartTLS: got true with Version 2, want Version 3"))
	}
	if p.Password != "" && p.DN == "" {
		errs = append(errs, errors.New("probe: LDAP.DN: got none with a Password, want the name that the password is of"))
	}
	if len(p.DN)+len(p.Password) > maxBER/2 {
		errs = append(errs, fmt.Errorf("probe: LDAP.DN and LDAP.Password: got %d bytes, want at most %d", len(p.DN)+len(p.Password), maxBER/2))
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p LDAP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("ldap", target, err)
	}
	return askOverTCP(ctx, "ldap", p.Dialer, target, maxBER, p.talk)
}

// Tags of the protocol (RFC 4511 section 4 and appendix B).
const (
	ldapBindRequest      = 0x60
	ldapBindResponse     = 0x61
	ldapUnbindRequest    = 0x42
	ldapExtendedRequest  = 0x77
	ldapExtendedResponse = 0x78

	ldapStartTLS = "1.3.6.1.4.1.1466.20037"
)

func (p LDAP) talk(s *stream) error {
	id := byte(1)
	if p.StartTLS {
		s.step = "StartTLS"
		if err := s.send(ldapMessage(id, ldapExtendedRequest, appendTLV(nil, 0x80, []byte(ldapStartTLS)))); err != nil {
			return err
		}
		r, err := readLDAP(s.reader, id, ldapExtendedResponse)
		if err != nil {
			return err
		}
		if r.code != 0 {
			return healthcheck.Mismatch(r.String(), "result code 0")
		}
		if err := s.startTLS(p.TLS); err != nil {
			return err
		}
		id++
	}
	s.step = "bind"
	if err := s.send(p.bindRequest(id)); err != nil {
		return err
	}
	r, err := readLDAP(s.reader, id, ldapBindResponse)
	if err != nil {
		return err
	}
	accepted := p.ResultCodes
	if len(accepted) == 0 {
		accepted = []uint8{0}
	}
	if r.code > 255 || !slices.Contains(accepted, uint8(r.code)) {
		return healthcheck.Mismatch(r.String(), fmt.Sprintf("result code in %v", accepted))
	}
	s.farewell(string(ldapMessage(id+1, ldapUnbindRequest, nil)))
	return nil
}

// bindRequest is
//
//	BindRequest ::= [APPLICATION 0] SEQUENCE { version INTEGER, name LDAPDN,
//	    authentication CHOICE { simple [0] OCTET STRING, … } }
func (p LDAP) bindRequest(id byte) []byte {
	version := p.Version
	if version == 0 {
		version = 3
	}
	b := appendTLV(nil, 0x02, []byte{version})
	b = appendTLV(b, 0x04, []byte(p.DN))
	b = appendTLV(b, 0x80, []byte(p.Password))
	return ldapMessage(id, ldapBindRequest, b)
}

// ldapMessage is LDAPMessage ::= SEQUENCE { messageID INTEGER, protocolOp … }.
func ldapMessage(id, tag byte, op []byte) []byte {
	b := appendTLV(nil, 0x02, []byte{id})
	b = appendTLV(b, tag, op)
	return appendTLV(nil, 0x30, b)
}

// ldapResult is the part of LDAPResult that matters:
//
//	SEQUENCE { resultCode ENUMERATED, matchedDN LDAPDN, diagnosticMessage … }
type ldapResult struct {
	code    uint32
	message string
}

func (r ldapResult) String() string {
	if r.message == "" {
		return fmt.Sprintf("result code %d", r.code)
	}
	return fmt.Sprintf("result code %d, %s", r.code, r.message)
}

// readLDAP reads a message and the result in it, which must be the answer tagged want to
// the request id.
func readLDAP(r *reader, id, want byte) (ldapResult, error) {
	body, err := readTLV(r, 0x30)
	if err != nil {
		return ldapResult{}, err
	}
	res, err := parseLDAP(body, id, want)
	if err != nil {
		return res, healthcheck.Mismatch(body, err.Error())
	}
	return res, nil
}

// parseLDAP parses the content of a message. Its error says what would have been right.
func parseLDAP(body []byte, id, want byte) (res ldapResult, err error) {
	tag, v, rest, ok := cutTLV(body)
	if !ok || tag != 0x02 {
		return res, errors.New("a message id")
	}
	if n, ok := berUint(v); !ok || n != uint32(id) {
		return res, fmt.Errorf("message id %d", id)
	}
	tag, op, _, ok := cutTLV(rest)
	if !ok {
		return res, errors.New("a complete operation")
	}
	if tag != want {
		return res, fmt.Errorf("an operation with tag %#x", want)
	}
	tag, v, rest, ok = cutTLV(op)
	if !ok || tag != 0x0a {
		return res, errors.New("a result code")
	}
	if res.code, ok = berUint(v); !ok {
		return res, errors.New("a result code of one to four bytes")
	}
	if _, _, rest, ok = cutTLV(rest); !ok {
		return res, errors.New("a matched name")
	}
	if _, v, _, ok = cutTLV(rest); !ok {
		return res, errors.New("a diagnostic message")
	}
	res.message = string(v)
	return res, nil
}
