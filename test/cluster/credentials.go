package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files in Config.Dir that the API server reads.
const (
	servingCertFile = "serving.crt"
	servingKeyFile  = "serving.key"
	accountKeyFile  = "service-account.key"
	tokenFile       = "tokens.csv"
)

// authority holds the credentials of clients: the trusted certificate, and the tokens of the users.
type authority struct {
	caPEM      []byte
	adminToken string
	proxyToken string
}

// newAuthority creates keys, certificates and tokens and writes the API server's files to dir.
func newAuthority(dir string, addr netip.Addr, ranges []netip.Prefix) (authority, error) {
	a := authority{adminToken: rand.Text(), proxyToken: rand.Text()}
	files, ca, err := makeCertificates(addr, ranges)
	if err != nil {
		return a, fmt.Errorf("make certificates: %w", err)
	}
	a.caPEM = ca
	// Columns: token, user name, user ID, groups.
	files[tokenFile] = fmt.Appendf(nil, "%s,admin,admin,\"system:masters\"\n%s,system:kube-proxy,kube-proxy\n",
		a.adminToken, a.proxyToken)
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return a, err
		}
	}
	return a, nil
}

// makeCertificates returns the contents of the PEM files by name, and the certificate of the authority that signed them. It
// discards the authority's key, which signs nothing else.
func makeCertificates(addr netip.Addr, ranges []netip.Prefix) (map[string][]byte, []byte, error) {
	ca := template("kube-nftproxy test authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caKey, _, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	caPEM, err := sign(ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	certPEM, err := sign(servingTemplate(addr, ranges), ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	_, accountPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	return map[string][]byte{servingCertFile: certPEM, servingKeyFile: keyPEM, accountKeyFile: accountPEM}, caPEM, nil
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
	}
}

// servingTemplate covers every name at which a client may reach the API server, including the Service kubernetes, which has the
// first address of each range.
func servingTemplate(addr netip.Addr, ranges []netip.Prefix) *x509.Certificate {
	cert := template("kube-apiserver")
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	addrs := []netip.Addr{addr, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, r := range ranges {
		addrs = append(addrs, r.Masked().Addr().Next())
	}
	for _, a := range addrs {
		cert.IPAddresses = append(cert.IPAddresses, a.AsSlice())
	}
	return cert
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func sign(cert, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, public, by)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// parseRanges parses prefixes joined by commas.
func parseRanges(s string) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	for field := range strings.SplitSeq(s, ",") {
		prefix, err := netip.ParsePrefix(field)
		if err != nil {
			return nil, fmt.Errorf("parse service ranges: %w", err)
		}
		ranges = append(ranges, prefix)
	}
	return ranges, nil
}
