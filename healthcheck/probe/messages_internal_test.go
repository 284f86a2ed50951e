package probe

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/internal/testenv"
)

// messages reads a table of captured datagrams.
func messages(t *testing.T, name string) (all []map[string]string) {
	f, err := os.Open(testenv.SharedFile(t, name))
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		var m map[string]string
		require.NoError(t, json.Unmarshal(sc.Bytes(), &m))
		all = append(all, m)
	}
	require.NoError(t, sc.Err())
	return all
}

// TestDNSMessages compares with what a dissector saw.
func TestDNSMessages(t *testing.T) {
	replies := 0
	for _, m := range messages(t, "expected/dns_messages.jsonl") {
		b, err := hex.DecodeString(m["udp.payload"])
		require.NoError(t, err)
		if len(b) < dnsHeader {
			continue
		}
		var p dnsmessage.Parser
		h, err := p.Start(b)
		require.NoError(t, err)
		q, err := p.Question()
		if err != nil {
			continue // no question
		}
		r, err := parseDNS(b, h.ID, q)
		if m["dns.flags.response"] == "0" {
			_, ok := errors.AsType[*ignoredError](err)
			require.True(t, ok, "a query is no reply: %v", err)
			continue
		}
		replies++
		// Every prefix and every id but the right one is refused without a panic.
		for n := range len(b) {
			_, _ = parseDNS(b[:n], h.ID, q)
		}
		_, other := parseDNS(b, h.ID+1, q)
		require.Error(t, other)
		if err != nil {
			continue // updates and corrupt ones
		}
		require.Equal(t, m["dns.flags.truncated"] == "1", r.truncated)
		if rcode := m["dns.flags.rcode"]; rcode != "" {
			require.Equal(t, rcode, string('0'+rune(r.rcode)))
		}
	}
	require.Greater(t, replies, 80)
}

// TestRADIUSMessages pairs captured requests and replies. Their secret is that of the
// server's example configuration.
func TestRADIUSMessages(t *testing.T) {
	requests := map[byte][16]byte{}
	good := 0
	for _, m := range messages(t, "expected/radius_messages.jsonl") {
		b, err := hex.DecodeString(m["udp.payload"])
		require.NoError(t, err)
		if len(b) < radiusHeader {
			continue
		}
		auth, known := requests[b[1]]
		if b[0] == radiusAccessRequest {
			requests[b[1]] = [16]byte(b[4:20])
			continue
		}
		if !known {
			continue
		}
		code, err := parseRADIUS(b, b[1], auth, "testing123", false)
		if m["file"] == "l7/zeek_radius_radius_localhost.pcap" && b[1] == 148 {
			require.ErrorContains(t, err, "wrong response authenticator", "made with another secret")
			continue
		}
		require.NoError(t, err, "id %d", b[1])
		require.Equal(t, b[0], code)
		good++
		for n := range len(b) {
			_, err := parseRADIUS(b[:n], b[1], auth, "testing123", false)
			require.Error(t, err)
		}
		_, err = parseRADIUS(b, b[1], auth, "testing124", false)
		require.Error(t, err)
	}
	require.Equal(t, 10, good)
}
