package l7

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// captured returns the payloads of TCP segments to port 80 in a capture.
func captured(t testing.TB, name string) (payloads [][]byte) {
	t.Helper()
	f, err := os.Open(testenv.SharedFile(t, name))
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return payloads
		}
		require.NoError(t, err)
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.NoCopy)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if ok && tcp.DstPort == 80 && len(tcp.Payload) > 0 {
			payloads = append(payloads, tcp.Payload)
		}
	}
}

// TestRealRequests: what browsers and tools really sent is accepted, and understood as
// net/http does.
func TestRealRequests(t *testing.T) {
	for _, name := range []string{"flows/pcpp_4KHttpRequests.pcap", "flows/zeek_wikipedia.pcap"} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			for _, b := range captured(t, name) {
				req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
				if err != nil {
					continue // the middle of a request
				}
				h, n, err := ParseHead(b)
				require.NoError(t, err, "%q", b)
				require.Equal(t, bytes.Index(b, []byte("\r\n\r\n"))+4, n)
				require.Equal(t, req.Host, string(h.Host))
				require.Equal(t, req.URL.EscapedPath(), string(h.Path))
				require.Equal(t, req.ContentLength, h.ContentLength)
				requests++
			}
			require.NotZero(t, requests)
			t.Log(requests, "requests")
		})
	}
}
