package sslpersist

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// Rows of the tables made with Wireshark's dissector.
type (
	wantClient struct {
		SessionID string   `json:"session_id"`
		HSVersion string   `json:"hs_version"`
		SNI       *string  `json:"sni"`
		Versions  []string `json:"supported_versions"`
		TicketLen *int     `json:"ticket_len"`
		PSK       bool     `json:"psk_offered"`
		SSLv2     bool     `json:"sslv2_format"`
	}
	wantServer struct {
		SessionID string `json:"session_id"`
		HSVersion string `json:"hs_version"`
		Selected  string `json:"selected_version"`
		HRR       bool   `json:"hrr"`
		PSK       bool   `json:"psk_selected"`
	}
	wantStream struct {
		File      string
		L4        string
		Stream    int
		Client    *string
		Server    *string
		Clients   []wantClient `json:"client_hellos"`
		Servers   []wantServer `json:"server_hellos"`
		Tickets   int          `json:"new_session_tickets"`
		TLS13     bool         `json:"tls13"`
		Resumed   *bool        `json:"resumed"`
		ResumedBy *string      `json:"resumed_by"`
		DecodeAs  any          `json:"decode_as"`
	}
	payloadRow struct {
		File           string
		Stream         int
		Client, Server string
		TLSSeen        bool   `json:"tls_seen"`
		C2S            []byte `json:"c2s_b64"`
		S2C            []byte `json:"s2c_b64"`
		C2SSegments    []int  `json:"c2s_segments"`
		S2CSegments    []int  `json:"s2c_segments"`
	}
)

func readLines[T any](t testing.TB, name string) (rows []T) {
	f, err := os.Open(testenv.SharedFile(t, name))
	require.NoError(t, err)
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var row T
		require.NoError(t, json.Unmarshal(s.Bytes(), &row), "%s", s.Text()[:min(200, len(s.Text()))])
		rows = append(rows, row)
	}
	require.NoError(t, s.Err())
	return rows
}

func hexVersion(t *testing.T, s string) Version {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 16)
	require.NoError(t, err)
	return Version(n)
}

func (w wantClient) check(t *testing.T, h ClientHello) {
	t.Helper()
	require.Equal(t, w.SessionID, h.SessionID.String(), "session ID")
	require.Equal(t, hexVersion(t, w.HSVersion), h.LegacyVersion, "legacy version")
	require.Equal(t, w.SSLv2, h.SSLv2)
	if w.SNI != nil {
		require.Equal(t, *w.SNI, string(h.ServerName), "server name")
	} else {
		require.Empty(t, h.ServerName)
	}
	require.Equal(t, w.PSK, h.HasPSK, "psk")
	if w.TicketLen != nil {
		require.NotNil(t, h.Ticket)
		require.Len(t, h.Ticket, *w.TicketLen)
	} else {
		require.Nil(t, h.Ticket)
	}
	best := h.LegacyVersion
	rank := 0
	for _, s := range w.Versions {
		if v := hexVersion(t, s); v.rank() > rank {
			best, rank = v, v.rank()
		}
	}
	require.Equal(t, best, h.Version, "highest version")
}

func (w wantServer) check(t *testing.T, h ServerHello) {
	t.Helper()
	require.Equal(t, w.SessionID, h.SessionID.String(), "session ID")
	require.Equal(t, hexVersion(t, w.HSVersion), h.LegacyVersion, "legacy version")
	require.Equal(t, hexVersion(t, w.Selected), h.Version, "selected version")
	require.Equal(t, w.HRR, h.HelloRetryRequest)
	require.Equal(t, w.PSK, h.HasPSK, "psk")
}

// parseInPieces parses one direction at once, byte by byte and in the given pieces, and
// wants the same from each.
func parseInPieces[T any](t *testing.T, b []byte, segments []int, parse func([]byte) (T, error), feed func(*Parser, []byte) (T, error)) (T, error) {
	t.Helper()
	whole, err := parse(b)
	chunked := func(sizes func(i int) int) {
		t.Helper()
		var p Parser
		rest := b
		for i := 0; len(rest) > 0; i++ {
			n := min(max(sizes(i), 1), len(rest))
			h, got := feed(&p, rest[:n])
			rest = rest[n:]
			if errors.Is(got, ErrShort) && len(rest) > 0 {
				continue
			}
			require.Equal(t, err, got)
			if err == nil {
				require.Equal(t, whole, h)
			}
			return
		}
	}
	chunked(func(int) int { return 1 })
	chunked(func(i int) int {
		if i < len(segments) {
			return segments[i]
		}
		return len(b)
	})
	return whole, err
}

// Streams that do not begin with a hello: what comes first is said to be no TLS, and the
// hello behind it is as tabled.
var hasPreamble = []string{
	"zeek_http_connect-with-header.pcap", "sv_bug-2430_backwards.pcap", "zeek_tls_smtp-starttls.pcap",
	"zeek_tls_pop3-starttls.pcap", "zeek_tls_xmpp-starttls.pcap", "zeek_ftp_ftp-auth-tls.pcap", "sv_smtp-startssl.pcap",
}

// checkStream compares both directions of one stream with its row.
func checkStream(t *testing.T, w wantStream, c2s, s2c []byte, c2sSegments, s2cSegments []int) {
	ch, cerr := parseInPieces(t, c2s, c2sSegments, ParseClientHello, (*Parser).Client)
	sh, serr := parseInPieces(t, s2c, s2cSegments, ParseServerHello, (*Parser).Server)
	name := filepath.Base(w.File)
	if slices.Contains(hasPreamble, name) {
		require.ErrorIs(t, cerr, ErrNotTLS)
		require.ErrorIs(t, serr, ErrNotTLS)
		at, sat := bytes.Index(c2s, []byte("\x16\x03")), bytes.Index(s2c, []byte("\x16\x03"))
		require.Positive(t, at)
		require.Positive(t, sat)
		ch, cerr = ParseClientHello(c2s[at:])
		sh, serr = ParseServerHello(s2c[sat:])
	}
	switch {
	case len(w.Clients) == 0:
		require.Error(t, cerr)
	case name == "pcpp_ssl-malformed1.pcap":
		require.ErrorIs(t, cerr, ErrMalformed)
		require.Equal(t, w.Clients[0].SessionID, ch.SessionID.String(), "what could be read")
	default:
		require.NoError(t, cerr)
		w.Clients[0].check(t, ch)
	}
	if len(w.Servers) > 0 && name != "sv_tcp-fastopen-10-syn-data-ignore.pcap" { // a gap before it
		require.NoError(t, serr)
		w.Servers[0].check(t, sh)
	}
}

func tcpRows(t *testing.T) (rows []wantStream) {
	for _, w := range readLines[wantStream](t, "expected/tls_streams.jsonl") {
		if w.L4 == "tcp" {
			rows = append(rows, w)
		}
	}
	return rows
}

// The reassembled payloads give what Wireshark's dissector read, however they are cut.
func TestPayloadsAgreeWithWireshark(t *testing.T) {
	want := map[string]wantStream{}
	for _, w := range tcpRows(t) {
		want[fmt.Sprint(w.File, w.Stream)] = w
	}
	for _, p := range readLines[payloadRow](t, "expected/tls_payloads.jsonl") {
		t.Run(fmt.Sprintf("%s/%d", filepath.Base(p.File), p.Stream), func(t *testing.T) {
			w, ok := want[fmt.Sprint(p.File, p.Stream)]
			if !ok {
				// Nothing was dissected: no hello, and no waiting for one but on silence.
				_, err := ParseClientHello(p.C2S)
				require.Error(t, err)
				if len(p.C2S) > 0 {
					require.ErrorIs(t, err, ErrNotTLS)
				}
				return
			}
			checkStream(t, w, p.C2S, p.S2C, p.C2SSegments, p.S2CSegments)
		})
	}
}

// Every capture, with a reassembly of our own: out of order, retransmitted and lost
// segments included.
func TestCapturesAgreeWithWireshark(t *testing.T) {
	byFile := map[string][]wantStream{}
	for _, w := range tcpRows(t) {
		byFile[w.File] = append(byFile[w.File], w)
	}
	clients, servers := 0, 0
	for file, rows := range byFile {
		flows := reassemble(t, testenv.SharedFile(t, file))
		for _, w := range rows {
			if w.Client == nil || w.Server == nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(file), w.Stream), func(t *testing.T) {
				c2s, s2c := flows[*w.Client+" "+*w.Server], flows[*w.Server+" "+*w.Client]
				checkStream(t, w, c2s, s2c, nil, nil)
				clients += min(1, len(w.Clients))
				servers += min(1, len(w.Servers))
			})
		}
	}
	t.Log(clients, "client hellos and", servers, "server hellos compared")
	require.Greater(t, clients, 400)
	require.Greater(t, servers, 380)
}
