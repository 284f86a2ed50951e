package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
)

// decoder returns what says in a line what a message of a binary protocol is; nil for protocols that are text, or shown as bytes.
func decoder(c *check) func(b []byte) (line string, ok bool) {
	switch c.Method {
	case healthcheck.DNS:
		if c.OverTCP {
			return func(b []byte) (string, bool) { // RFC 1035, 4.2.2: a length before each message
				if len(b) < 2 || int(binary.BigEndian.Uint16(b)) != len(b)-2 {
					return "", false
				}
				return dnsLine(b[2:])
			}
		}
		return dnsLine
	case healthcheck.RADIUS:
		return radiusLine
	case healthcheck.TFTP:
		return tftpLine
	}
	return nil
}

// dnsLine reads a message of RFC 1035.
func dnsLine(b []byte) (string, bool) {
	var m dnsmessage.Message
	if m.Unpack(b) != nil {
		return "", false
	}
	kind := "query"
	if m.Response {
		kind = "answer"
	}
	var parts []string
	short := func(t fmt.Stringer) string { return strings.TrimPrefix(t.String(), "Type") }
	for _, q := range m.Questions {
		parts = append(parts, fmt.Sprintf("%s %s", short(q.Type), q.Name))
	}
	if m.Response {
		parts = append(parts, strings.TrimPrefix(m.RCode.String(), "RCode"))
	}
	for _, a := range m.Answers {
		text := fmt.Sprintf("%s %s", a.Header.Name, short(a.Header.Type))
		switch r := a.Body.(type) {
		case *dnsmessage.AResource:
			text += " " + netip.AddrFrom4(r.A).String()
		case *dnsmessage.AAAAResource:
			text += " " + netip.AddrFrom16(r.AAAA).String()
		case *dnsmessage.CNAMEResource:
			text += " " + r.CNAME.String()
		case *dnsmessage.SOAResource:
			text += fmt.Sprintf(" %s serial %d", r.NS, r.Serial)
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("[DNS %s %d: %s, %d bytes]", kind, m.ID, strings.Join(parts, ", "), len(b)), true
}

// radiusLine reads a packet of RFC 2865. What attributes contain stays hidden: passwords are among them.
func radiusLine(b []byte) (string, bool) {
	r := &layers.RADIUS{}
	if r.DecodeFromBytes(b, gopacket.NilDecodeFeedback) != nil {
		return "", false
	}
	var names []string
	for _, a := range r.Attributes {
		names = append(names, a.Type.String())
	}
	return fmt.Sprintf("[RADIUS %v id %d: %s, %d bytes]", r.Code, r.Identifier, strings.Join(names, " "), len(b)), true
}

// tftpLine reads a packet of RFC 1350.
func tftpLine(b []byte) (string, bool) {
	if len(b) < 4 {
		return "", false
	}
	number := binary.BigEndian.Uint16(b[2:])
	fields := strings.Split(strings.TrimRight(string(b[2:]), "\x00"), "\x00")
	switch binary.BigEndian.Uint16(b) {
	case 1:
		return fmt.Sprintf("[TFTP read request %q, %d bytes]", fields, len(b)), true
	case 3:
		return fmt.Sprintf("[TFTP data, block %d, %d bytes]", number, len(b)), true
	case 4:
		return fmt.Sprintf("[TFTP acknowledgement of block %d, %d bytes]", number, len(b)), true
	case 5:
		return fmt.Sprintf("[TFTP error %d %q, %d bytes]", number, strings.TrimRight(string(b[4:]), "\x00"), len(b)), true
	case 6:
		return fmt.Sprintf("[TFTP options %q, %d bytes]", fields, len(b)), true
	}
	return "", false
}
